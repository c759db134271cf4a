"""DDP on any number of ranks (gloo): DistributedSampler with set_epoch, AdamW, warm-up, dropout with a generator per rank; each rank writes its own generator file, rank 0 the model; a barrier, then a pointer file.
--set_epoch: set_epoch is called with the number of epochs since the restart. --rng0: all ranks load rank 0's generator. --warm: warm-up again after the restart."""

import argparse, os, shutil
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
for f in ("set_epoch", "rng0", "warm"):
    p.add_argument("--" + f, action="store_true")
args = p.parse_args()
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
x = torch.randn(24 * world, 6)
net = DDP(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1)))
torch.manual_seed(100 + rank)
opt = torch.optim.AdamW(net.parameters(), 1e-2)
sched = torch.optim.lr_scheduler.LinearLR(opt, 0.1, total_iters=9)
sampler = DistributedSampler(x, world, rank, shuffle=True, seed=3)
loader = DataLoader(TensorDataset(x), batch_size=2, sampler=sampler)
epoch, done, step, pointer, first = 0, 0, 0, os.path.join(args.out, "latest.txt"), 0
os.makedirs(args.out, exist_ok=True)
if os.path.exists(pointer):
    d = os.path.join(args.out, open(pointer).read().strip())
    s = torch.load(d + "/model.pt")
    net.module.load_state_dict(s["net"]), opt.load_state_dict(s["opt"])
    if not args.warm:
        sched.load_state_dict(s["sched"])
    epoch, done, step = s["epoch"], s["done"], s["step"]
    first = epoch if args.set_epoch else 0
    torch.set_rng_state(torch.load(f"{d}/rng_{0 if args.rng0 else rank}.pt"))
for epoch in range(epoch, 2):
    sampler.set_epoch(epoch - first)
    keep = torch.get_rng_state()  # making an iterator draws a seed
    batches = iter(loader)
    torch.set_rng_state(keep)
    for i, (b,) in enumerate(batches):
        if i < done:
            continue
        loss = (net(b) - b.sum(1, keepdim=True)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        step += 1
        if step % 5 == 0:
            d = os.path.join(args.out, f"step_{step}")
            os.makedirs(d, exist_ok=True)
            torch.save(torch.get_rng_state(), f"{d}/rng_{rank}.pt")
            if rank == 0:
                torch.save(
                    {
                        "net": net.module.state_dict(),
                        "opt": opt.state_dict(),
                        "sched": sched.state_dict(),
                        "epoch": epoch,
                        "done": i + 1,
                        "step": step,
                    },
                    d + "/model.pt",
                )
            dist.barrier()
            if rank == 0:
                with open(pointer + ".tmp", "w") as f:
                    f.write(f"step_{step}")
                os.replace(pointer + ".tmp", pointer)
                for old in range(5, step - 5, 5):
                    shutil.rmtree(os.path.join(args.out, f"step_{old}"), ignore_errors=True)
            dist.barrier()
    done = 0
dist.barrier()
dist.destroy_process_group()
