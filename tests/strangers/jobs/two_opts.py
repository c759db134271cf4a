"""Two optimizers, one for matrices and one for the rest: both step after one backward or, with `--turns`, in
turn after a backward of their own. `--bug`: the second optimizer's state is not loaded."""

import argparse
from pathlib import Path

import torch

a = argparse.ArgumentParser()
a.add_argument("--out", type=Path)
a.add_argument("--bug", action="store_true")
a.add_argument("--turns", action="store_true")
a = a.parse_args()
torch.set_num_threads(1)
torch.manual_seed(5)
x = torch.randn(32, 5)
net = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
first = torch.optim.SGD([p for p in net.parameters() if p.dim() > 1], 0.05, momentum=0.9)
second = torch.optim.AdamW([p for p in net.parameters() if p.dim() < 2], 0.01)
a.out.mkdir(parents=True, exist_ok=True)
step, file = 0, a.out / "last.pt"
if file.exists():
    s = torch.load(file)
    net.load_state_dict(s["net"]), first.load_state_dict(s["first"])
    if not a.bug:
        second.load_state_dict(s["second"])
    step = s["step"]
for epoch in range(step // 8, 4):
    order = torch.Generator().manual_seed(epoch)
    for number, batch in enumerate(
        torch.utils.data.DataLoader(x, 4, shuffle=True, generator=order)
    ):
        if epoch * 8 + number < step:
            continue
        for due in ((first,), (second,)) if a.turns else ((first, second),):
            net.zero_grad()
            (net(batch) - batch[:, :1]).square().mean().backward()
            for opt in due:
                opt.step()
        step += 1
        if step % 5 == 0:
            torch.save(
                {
                    "net": net.state_dict(),
                    "first": first.state_dict(),
                    "second": second.state_dict(),
                    "step": step,
                },
                f"{file}.tmp",
            )
            Path(f"{file}.tmp").replace(file)
