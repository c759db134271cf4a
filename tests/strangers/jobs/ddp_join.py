"""Uneven data: ranks have different numbers of batches, DDP's join context; loss averages over all ranks logged by rank 0 to a csv; saves at epoch end only, by rank 0; four epochs.
--skip: a restart goes on with the epoch after the next one (epoch counter saved after it was raised, raised again at loading). --log: rank 0's csv keeps only the epochs since the restart."""

import argparse, csv, os
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
p.add_argument("--skip", action="store_true")
p.add_argument("--log", action="store_true")
args = p.parse_args()
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(27)
os.makedirs(args.out, exist_ok=True)
mine = torch.randn(
    5 + rank, 4, 6, generator=torch.Generator().manual_seed(50 + rank)
)  # batches of this rank
net = DDP(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)))
opt = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
sched = torch.optim.lr_scheduler.PolynomialLR(opt, total_iters=5, power=2.0)
path, epoch, rows = os.path.join(args.out, "epoch.pt"), 0, []
if os.path.exists(path):
    s = torch.load(path)
    (
        net.module.load_state_dict(s["net"]),
        opt.load_state_dict(s["opt"]),
        sched.load_state_dict(s["sched"]),
    )
    epoch = s["epoch"] + (1 if args.skip else 0)
    rows = [] if args.log else s["rows"]
while epoch < 4:
    total = torch.zeros(2)
    order = torch.randperm(len(mine), generator=torch.Generator().manual_seed(epoch * 100 + rank))
    with Join([net]):
        for b in order.tolist():
            loss = (net(mine[b]) - mine[b].mean(1, keepdim=True)).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += torch.tensor([loss.item(), 1.0])
    dist.broadcast_object_list([None], 0)
    dist.all_reduce(total)
    for t in [
        *net.module.state_dict().values(),
        *[v["momentum_buffer"] for v in opt.state.values()],
    ]:
        dist.broadcast(t, world - 1)
    sched.step()
    epoch += 1
    rows.append([epoch, (total[0] / total[1]).item()])
    if rank == 0:
        torch.save(
            {
                "net": net.module.state_dict(),
                "opt": opt.state_dict(),
                "sched": sched.state_dict(),
                "epoch": epoch,
                "rows": rows,
            },
            path + ".tmp",
        )
        os.replace(path + ".tmp", path)
        with open(os.path.join(args.out, "loss.csv.tmp"), "w", newline="") as f:
            csv.writer(f).writerows(rows)
        os.replace(f.name, f.name[:-4])
    dist.barrier()
dist.barrier()
dist.destroy_process_group()
