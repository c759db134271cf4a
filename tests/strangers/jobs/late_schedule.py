"""A schedule writes its first rate into the optimizer when it is made, and its load_state_dict writes none. `--bug`: it
is made after the optimizer was loaded, so that LinearLR's warm-up factor of a tenth falls upon the loaded rate, and
stays."""

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


def warm_up():
    return torch.optim.lr_scheduler.LinearLR(opt, start_factor=0.1, total_iters=6)


a.out.mkdir(parents=True, exist_ok=True)
step, file = 0, a.out / "last.pt"
plan = None if a.bug else warm_up()
saved = torch.load(file) if file.exists() else None
if saved:
    net.load_state_dict(saved["net"]), opt.load_state_dict(saved["opt"])
plan = plan or warm_up()
if saved:
    plan.load_state_dict(saved["plan"])
    step = saved["step"]
for epoch in range(step // 8, 3):
    order = torch.Generator().manual_seed(epoch)
    for number, batch in enumerate(
        torch.utils.data.DataLoader(x, 4, shuffle=True, generator=order)
    ):
        if epoch * 8 + number < step:
            continue
        loss = (net(batch) - batch[:, :1]).square().mean()
        opt.zero_grad(), loss.backward(), opt.step(), plan.step()
        step += 1
        if step % 5 == 0:
            state = {
                "net": net.state_dict(),
                "opt": opt.state_dict(),
                "plan": plan.state_dict(),
                "step": step,
            }
            torch.save(state, f"{file}.tmp")
            Path(f"{file}.tmp").replace(file)
