"""DDP with BatchNorm whose running statistics differ per rank (broadcast_buffers=False); each rank saves its own statistics, SGD, epoch-end checkpoints only, per-rank files renamed, the epoch agreed on by all ranks (minimum).
--stats: all ranks take rank 0's statistics. --eager: the save happens before the scheduler of the epoch steps, but the epoch counts as done."""

import argparse, glob, os, re
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
p.add_argument("--stats", action="store_true")
p.add_argument("--eager", action="store_true")
args = p.parse_args()
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(9)
os.makedirs(args.out, exist_ok=True)
x = torch.randn(40, 6) * torch.arange(1, 7)
net = DDP(
    nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)),
    broadcast_buffers=False,
)
opt = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
sched = torch.optim.lr_scheduler.MultiStepLR(opt, [1, 3], 0.3)


def path(epoch, r=rank):
    return os.path.join(args.out, f"epoch{epoch}.rank{r}.pt")


have = [
    int(re.search(r"epoch(\d+)", f).group(1))
    for f in glob.glob(os.path.join(args.out, f"epoch*.rank{rank}.pt"))
]
mine = torch.tensor(max(have, default=0))
dist.all_reduce(mine, dist.ReduceOp.MIN)
epoch, step = int(mine), int(mine) * 5
if epoch:
    s = torch.load(path(epoch, 0 if args.stats else rank))
    (
        net.module.load_state_dict(s["net"]),
        opt.load_state_dict(s["opt"]),
        sched.load_state_dict(s["sched"]),
    )


def save(number):
    torch.save(
        {"net": net.module.state_dict(), "opt": opt.state_dict(), "sched": sched.state_dict()},
        path(number) + ".tmp",
    )
    os.replace(path(number) + ".tmp", path(number))
    dist.barrier()
    for old in range(number - 1):
        if os.path.exists(path(old)):
            os.remove(path(old))


while epoch < 4:
    order = torch.randperm(40, generator=torch.Generator().manual_seed(epoch))[rank::world]
    for b in range(5):
        batch = x[order[b * 4 : b * 4 + 4]]
        loss = (net(batch) - batch[:, :1]).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
    if args.eager:
        save(epoch + 1)
        sched.step()
    else:
        sched.step()
        save(epoch + 1)
    epoch += 1
net.eval()
with torch.no_grad():
    score = float(net(x).square().mean())
with open(os.path.join(args.out, f"score.rank{rank}.txt"), "w") as f:
    f.write(repr(score))
dist.barrier()
dist.destroy_process_group()
