"""The moving average's update counter is rebuilt after the load (`--bug`): its decay warms up again. Only the
exported ema.pt is wrong; `--watch` shows the average to the audit during training."""

import argparse
from pathlib import Path

import torch

a = argparse.ArgumentParser()
a.add_argument("--out", type=Path)
a.add_argument("--bug", action="store_true")
a.add_argument("--watch", action="store_true")
a = a.parse_args()
torch.set_num_threads(1)
torch.manual_seed(5)
x = torch.randn(32, 5)
net = torch.nn.Linear(5, 1)
opt = torch.optim.AdamW(net.parameters(), 0.02)
average, updates = [p.detach().clone() for p in net.parameters()], 0
if a.watch:
    import ecrl

    ecrl.session().watch(model=net, ema=average)
a.out.mkdir(parents=True, exist_ok=True)
step, file = 0, a.out / "last.pt"
if file.exists():
    s = torch.load(file)
    net.load_state_dict(s["net"]), opt.load_state_dict(s["opt"])
    step, updates = s["step"], 0 if a.bug else s["updates"]
    for kept, value in zip(average, s["average"]):
        kept.copy_(value)
for epoch in range(step // 8, 4):
    order = torch.Generator().manual_seed(epoch)
    for number, batch in enumerate(
        torch.utils.data.DataLoader(x, 4, shuffle=True, generator=order)
    ):
        if epoch * 8 + number < step:
            continue
        loss = (net(batch) - batch[:, :1]).square().mean()
        opt.zero_grad(), loss.backward(), opt.step()
        step, updates = step + 1, updates + 1
        decay = min(0.99, (1 + updates) / (10 + updates))
        for kept, p in zip(average, net.parameters()):
            kept.mul_(decay).add_(p.detach(), alpha=1 - decay)
        if step % 5 == 0:
            torch.save(
                {
                    "net": net.state_dict(),
                    "opt": opt.state_dict(),
                    "step": step,
                    "average": average,
                    "updates": updates,
                },
                f"{file}.tmp",
            )
            Path(f"{file}.tmp").replace(file)
torch.save(average, a.out / "ema.pt")
