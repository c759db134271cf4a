"""The newest checkpoint is chosen by its name as text (`--bug`): step-9 comes after step-12. The trajectory is
exact all the same: work is done again."""

import argparse
from pathlib import Path

import torch

a = argparse.ArgumentParser()
a.add_argument("--out", type=Path)
a.add_argument("--bug", action="store_true")
a = a.parse_args()
torch.set_num_threads(1)
torch.manual_seed(5)
x = torch.randn(32, 5)
net = torch.nn.Linear(5, 1)
opt = torch.optim.AdamW(net.parameters(), 0.02)
a.out.mkdir(parents=True, exist_ok=True)
step = 0
found = sorted(a.out.glob("step-*.pt"), key=lambda path: path.stem if a.bug else int(path.stem[5:]))
if found:
    s = torch.load(found[-1])
    net.load_state_dict(s["net"]), opt.load_state_dict(s["opt"])
    step = s["step"]
for epoch in range(step // 8, 3):
    order = torch.Generator().manual_seed(epoch)
    for number, batch in enumerate(
        torch.utils.data.DataLoader(x, 4, shuffle=True, generator=order)
    ):
        if epoch * 8 + number < step:
            continue
        loss = (net(batch) - batch[:, :1]).square().mean()
        opt.zero_grad(), loss.backward(), opt.step()
        step += 1
        if step % 3 == 0:
            torch.save(
                {"net": net.state_dict(), "opt": opt.state_dict(), "step": step}, a.out / "part.tmp"
            )
            (a.out / "part.tmp").replace(a.out / f"step-{step}.pt")
