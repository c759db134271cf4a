"""Parameters are projected after each optimizer step (rows of norm 1), then saved. `--bug`: the projection is
left out after a restart until the next epoch."""

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
net = torch.nn.Linear(5, 5, bias=False)
opt = torch.optim.AdamW(net.parameters(), 0.02)
a.out.mkdir(parents=True, exist_ok=True)
step, file = 0, a.out / "last.pt"
if file.exists():
    s = torch.load(file)
    net.load_state_dict(s["net"]), opt.load_state_dict(s["opt"])
    step = s["step"]
project = not (a.bug and step)
for epoch in range(step // 8, 4):
    order = torch.Generator().manual_seed(epoch)
    for number, batch in enumerate(
        torch.utils.data.DataLoader(x, 4, shuffle=True, generator=order)
    ):
        if epoch * 8 + number < step:
            continue
        loss = (net(batch) - batch.flip(1)).square().mean()
        opt.zero_grad(), loss.backward(), opt.step()
        if project:
            with torch.no_grad():
                net.weight.div_(net.weight.norm(dim=1, keepdim=True))
        step += 1
        if step % 5 == 0:
            torch.save(
                {"net": net.state_dict(), "opt": opt.state_dict(), "step": step}, f"{file}.tmp"
            )
            Path(f"{file}.tmp").replace(file)
    project = True
