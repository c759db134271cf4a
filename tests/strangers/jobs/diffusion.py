"""Diffusion: time steps and noise are drawn in the loop from torch's global generator; average of the weights whose decay depends on the number of updates; DataLoader with shuffle from the global generator too.
--noise: torch's generator is not restored (data order of later epochs and noise change). --updates: the number of updates of the average restarts, so its decay is that of the beginning."""

import argparse, copy, os
import torch
from torch import nn
from torch.utils.data import DataLoader

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
p.add_argument("--noise", action="store_true")
p.add_argument("--updates", action="store_true")
args = p.parse_args()
torch.set_num_threads(1)
torch.manual_seed(123)
os.makedirs(args.out, exist_ok=True)
data = torch.rand(40, 6)
beta = torch.linspace(1e-3, 0.2, 20)
alpha = (1 - beta).cumprod(0)
net = nn.Sequential(nn.Linear(7, 32), nn.SiLU(), nn.Linear(32, 6))
ema = copy.deepcopy(net).requires_grad_(False)
opt = torch.optim.AdamW(net.parameters(), 2e-3)
path = os.path.join(args.out, "diffusion.pt")
epoch, skip, step, updates, epoch_rng = 0, 0, 0, 0, None
loader = DataLoader(data, batch_size=4, shuffle=True)
ck = torch.load(path) if os.path.exists(path) else None
if ck:
    net.load_state_dict(ck["net"]), ema.load_state_dict(ck["ema"]), opt.load_state_dict(ck["opt"])
    epoch, skip, step = ck["epoch"], ck["skip"], ck["step"]
    updates = 0 if args.updates else ck["updates"]
    if not args.noise:
        torch.set_rng_state(ck["epoch_rng"])
while epoch < 2:
    epoch_rng = torch.get_rng_state()
    for i, x in enumerate(loader):
        if i < skip:
            continue
        if ck:  # the order is drawn again, now the noise goes on
            if not args.noise:
                torch.set_rng_state(ck["rng"])
            ck = None
        t = torch.randint(20, (len(x),))
        eps = torch.randn_like(x)
        a = alpha[t][:, None]
        loss = (
            (net(torch.cat([a.sqrt() * x + (1 - a).sqrt() * eps, t[:, None] / 20], 1)) - eps)
            .square()
            .mean()
        )
        opt.zero_grad()
        loss.backward()
        opt.step()
        updates += 1
        decay = min(0.99, (1 + updates) / (10 + updates))
        with torch.no_grad():
            for e, q in zip(ema.parameters(), net.parameters()):
                e.mul_(decay).add_(q, alpha=1 - decay)
        step += 1
        if step % 4 == 0:
            torch.save(
                {
                    "net": net.state_dict(),
                    "ema": ema.state_dict(),
                    "opt": opt.state_dict(),
                    "epoch": epoch,
                    "skip": i + 1,
                    "step": step,
                    "updates": updates,
                    "rng": torch.get_rng_state(),
                    "epoch_rng": epoch_rng,
                },
                path + ".tmp",
            )
            os.replace(path + ".tmp", path)
    if ck:
        torch.set_rng_state(ck["rng"])
        ck = None
    epoch, skip = epoch + 1, 0
torch.save({"net": net.state_dict(), "ema": ema.state_dict()}, os.path.join(args.out, "final.pt"))
