"""Mixture of experts with a balancing bias that follows counters of use; bias and counters are plain tensors, no buffers, so state_dict does not hold them: the healthy job saves them beside. RMSprop, worker-free iterable data set.
--counters: they start at zero after a restart. --early: the iterable data set starts from its beginning."""

import argparse, os
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
p.add_argument("--counters", action="store_true")
p.add_argument("--early", action="store_true")
args = p.parse_args()
torch.set_num_threads(1)
torch.manual_seed(77)
os.makedirs(args.out, exist_ok=True)


class Stream(IterableDataset):
    def __init__(self, epoch, skip):
        self.epoch, self.skip = epoch, skip

    def __iter__(self):
        for i in range(self.skip, 48):
            g = torch.Generator().manual_seed(1000 * self.epoch + i)
            x = torch.randn(6, generator=g)
            yield x, x.roll(1)


class MoE(nn.Module):
    def __init__(self, n=4):
        super().__init__()
        self.router = nn.Linear(6, n, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6)) for _ in range(n)
        )
        self.bias, self.used = torch.zeros(n), torch.zeros(n, dtype=torch.long)

    def forward(self, x):
        gate = self.router(x).softmax(-1)
        top = (gate + self.bias).topk(2, -1).indices
        self.used += torch.bincount(top.flatten(), minlength=len(self.bias))
        self.bias += 0.02 * torch.sign(self.used.float().mean() - self.used)
        mask = torch.zeros_like(gate).scatter(1, top, 1.0)
        return sum((gate * mask)[:, i : i + 1] * e(x) for i, e in enumerate(self.experts))


net = MoE()
opt = torch.optim.RMSprop(net.parameters(), 5e-3, momentum=0.5, centered=True)
path, epoch, seen, step = os.path.join(args.out, "moe.pth"), 0, 0, 0
if os.path.exists(path):
    s = torch.load(path)
    net.load_state_dict(s["net"]), opt.load_state_dict(s["opt"])
    epoch, seen, step = s["epoch"], s["seen"], s["step"]
    if not args.counters:
        net.bias, net.used = s["bias"], s["used"]
while epoch < 2:
    for x, y in DataLoader(Stream(epoch, 0 if args.early else seen), batch_size=4):
        loss = (net(x) - y).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        seen += len(x)
        if step % 5 == 0:
            torch.save(
                {
                    "net": net.state_dict(),
                    "opt": opt.state_dict(),
                    "bias": net.bias,
                    "used": net.used,
                    "epoch": epoch,
                    "seen": seen,
                    "step": step,
                },
                path + ".tmp",
            )
            os.replace(path + ".tmp", path)
        if seen >= 48:
            break
    epoch, seen = epoch + 1, 0
torch.save(
    {"net": net.state_dict(), "bias": net.bias, "used": net.used},
    os.path.join(args.out, "final.pth"),
)
