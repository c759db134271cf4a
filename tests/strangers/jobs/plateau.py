"""A schedule of the epoch's metric. `--bug`: timm's, which restores the best metric but not how long it has been
worse: wrong only later. Without it: torch's own scheduler, saved whole."""

import argparse
from pathlib import Path

import torch
from timm.scheduler.plateau_lr import PlateauLRScheduler

a = argparse.ArgumentParser()
a.add_argument("--out", type=Path)
a.add_argument("--bug", action="store_true")
a = a.parse_args()
torch.set_num_threads(1)
torch.manual_seed(5)
PER, EPOCHS = 4, 8
x = torch.randn(16, 5)
net = torch.nn.Linear(5, 1)
opt = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
if a.bug:
    plan = PlateauLRScheduler(opt, decay_rate=0.5, patience_t=2, mode="min")
else:
    plan = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=2)
a.out.mkdir(parents=True, exist_ok=True)
epoch, file = 0, a.out / "last.pt"
if file.exists():
    s = torch.load(file)
    net.load_state_dict(s["net"]), opt.load_state_dict(s["opt"]), plan.load_state_dict(s["plan"])
    epoch = s["epoch"]
for epoch in range(epoch, EPOCHS):
    order = torch.Generator().manual_seed(epoch)
    for batch in torch.utils.data.DataLoader(x, 16 // PER, shuffle=True, generator=order):
        loss = net(batch).square().mean()
        opt.zero_grad(), loss.backward(), opt.step()
    metric = 1.0 if epoch == 0 else 2.0  # stays worse: the rate halves every third epoch
    plan.step(epoch + 1, metric) if a.bug else plan.step(metric)
    torch.save(
        {
            "net": net.state_dict(),
            "opt": opt.state_dict(),
            "plan": plan.state_dict(),
            "epoch": epoch + 1,
        },
        f"{file}.tmp",
    )
    Path(f"{file}.tmp").replace(file)
