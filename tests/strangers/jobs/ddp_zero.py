"""ZeroRedundancyOptimizer: each rank holds a part of Adam's state; consolidated to rank 0 at each save; gradient accumulation with no_sync (2 micro batches); gradient clipping.
--shard: no consolidation: rank 0's part only is saved, the other ranks start their part anew. --nosync: after a restart the accumulation phase is shifted by one micro batch."""

import argparse, contextlib, os
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
p.add_argument("--shard", action="store_true")
p.add_argument("--nosync", action="store_true")
args = p.parse_args()
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(4)
os.makedirs(args.out, exist_ok=True)
x = torch.randn(64, 5)
net = DDP(
    nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.Linear(10, 10), nn.Tanh(), nn.Linear(10, 2))
)
opt = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=1e-2)
path, micro, step = os.path.join(args.out, "zero.pt"), 0, 0
if os.path.exists(path):
    s = torch.load(path, weights_only=False)
    net.module.load_state_dict(s["net"])
    if args.shard:
        if rank == 0:
            opt.optim.load_state_dict(s["opt"])
    else:
        opt.load_state_dict(s["opt"])
    micro, step = s["micro"] - (1 if args.nosync else 0), s["step"]
while step < 16:
    last = micro % 2 == 1
    order = torch.randperm(64, generator=torch.Generator().manual_seed(micro // 16))[rank::world]
    k = micro % 16
    batch = x[order[k * 2 : k * 2 + 2]]
    with contextlib.nullcontext() if last else net.no_sync():
        loss = (net(batch) - batch[:, :2]).square().mean() / 2
        loss.backward()
    micro += 1
    if last:
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        step += 1
        if step % 3 == 0 or step == 16:
            if not args.shard:
                opt.consolidate_state_dict(0)
            if rank == 0:
                o = opt.optim.state_dict() if args.shard else opt.state_dict()
                torch.save(
                    {"net": net.module.state_dict(), "opt": o, "micro": micro, "step": step},
                    path + ".tmp",
                )
                os.replace(path + ".tmp", path)
            dist.barrier()
dist.barrier()
dist.destroy_process_group()
