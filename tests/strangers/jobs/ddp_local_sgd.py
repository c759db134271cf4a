"""Local SGD without the DDP wrapper: every rank trains its own model, parameters are averaged every 4 steps; saves fall between two averagings, so ranks differ and each writes its own file; the newest step that all ranks have is resumed.
--rank0: all ranks load rank 0's file. --ownnewest: each rank takes its own newest file, so after a death during a save ranks go on from different steps."""

import argparse, glob, os, re
import torch
import torch.distributed as dist
from torch import nn

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
p.add_argument("--rank0", action="store_true")
p.add_argument("--ownnewest", action="store_true")
args = p.parse_args()
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(12)
os.makedirs(args.out, exist_ok=True)
x = torch.randn(30 * world, 4)
net = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 1))
opt = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)


def file(step, r):
    return os.path.join(args.out, f"local_{step:03d}_{r}.pt")


mine = {
    int(re.search(r"local_(\d+)_", f).group(1))
    for f in glob.glob(os.path.join(args.out, f"local_*_{rank}.pt"))
}
everyone = [None] * world
dist.all_gather_object(everyone, mine)
common = set.intersection(*everyone)
step = max(mine if args.ownnewest else common, default=0)
if step:
    s = torch.load(file(step, 0 if args.rank0 else rank))
    net.load_state_dict(s["net"]), opt.load_state_dict(s["opt"])
while step < 20:
    epoch, b = divmod(step, 10)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))[rank::world]
    batch = x[order[b * 3 : b * 3 + 3]]
    loss = (net(batch) - batch.prod(1, keepdim=True)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    step += 1
    if step % 4 == 0:
        for q in net.parameters():
            dist.all_reduce(q.data)
            q.data /= world
    if step % 6 == 0 or step == 20:
        torch.save({"net": net.state_dict(), "opt": opt.state_dict()}, file(step, rank) + ".tmp")
        dist.barrier()
        os.replace(file(step, rank) + ".tmp", file(step, rank))
dist.barrier()
dist.destroy_process_group()
