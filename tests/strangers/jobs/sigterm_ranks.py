"""DDP on two ranks with dropout. It saves at the end of each epoch; asked to end (SIGTERM), the ranks agree on it after the step under way, save and leave with 0.
--bug: that last checkpoint has the generator of rank 0 alone, which every rank takes. --count: it counts the step under way as not done."""

import argparse, os, signal, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
p.add_argument("--bug", action="store_true")
p.add_argument("--count", action="store_true")
args = p.parse_args()
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(8)
data = TensorDataset(torch.randn(64, 5), torch.randint(3, (64,)))
net = nn.Sequential(nn.Linear(5, 24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 3))
model = DistributedDataParallel(net)
opt = torch.optim.AdamW(model.parameters(), 0.01)
torch.manual_seed(100 + rank)
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
path = os.path.join(args.out, "last.pt")
epoch, done = 0, 0


def save(epoch, done, last):
    generators = [None] * world
    dist.all_gather_object(generators, torch.get_rng_state())
    if rank == 0:
        if last and args.bug:
            generators = generators[:1] * world
        state = {
            "net": net.state_dict(),
            "opt": opt.state_dict(),
            "epoch": epoch,
            "done": done,
            "generators": generators,
        }
        torch.save(state, path + ".tmp")
        os.replace(path + ".tmp", path)
    dist.barrier()


if os.path.exists(path):
    s = torch.load(path)
    net.load_state_dict(s["net"]), opt.load_state_dict(s["opt"])
    epoch, done = s["epoch"], s["done"]
    torch.set_rng_state(s["generators"][rank])
sampler = DistributedSampler(data, world, rank, seed=4)
while epoch < 3:
    sampler.set_epoch(epoch)
    loader = DataLoader(
        data, batch_size=4, sampler=sampler, generator=torch.Generator().manual_seed(epoch)
    )
    for b, (x, y) in enumerate(loader):
        if b < done:
            continue
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        flag = torch.tensor(len(asked))
        dist.all_reduce(flag)
        if flag:
            save(epoch, b + (not args.count), last=True)
            dist.destroy_process_group()
            sys.exit(0)
    epoch, done = epoch + 1, 0
    save(epoch, done, last=False)
dist.barrier()
dist.destroy_process_group()
