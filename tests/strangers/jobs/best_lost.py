"""The best metric is not saved (`--bug`): after a restart a worse model overwrites best.pt. Training itself is
exact: only a file that the job leaves shows it."""

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
step, best, file = 0, -1.0, a.out / "last.pt"
if file.exists():
    s = torch.load(file)
    net.load_state_dict(s["net"]), opt.load_state_dict(s["opt"])
    step, best = s["step"], -1.0 if a.bug else s["best"]
for epoch in range(step // 8, 4):
    order = torch.Generator().manual_seed(epoch)
    for number, batch in enumerate(
        torch.utils.data.DataLoader(x, 4, shuffle=True, generator=order)
    ):
        if epoch * 8 + number < step:
            continue
        loss = (net(batch) - batch[:, :1]).square().mean()
        opt.zero_grad(), loss.backward(), opt.step()
        step += 1
        if step % 4 == 0:
            score = 1.0 / step  # of an evaluation: the first is the best
            if score > best:
                best = score
                torch.save(net.state_dict(), a.out / "best.pt")
            torch.save(
                {"net": net.state_dict(), "opt": opt.state_dict(), "step": step, "best": best},
                f"{file}.tmp",
            )
            Path(f"{file}.tmp").replace(file)
