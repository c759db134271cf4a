"""DDP where each rank reads its own shard file by an iterable loader with one worker; position per rank; loss-dependent skipping of batches (a rank-wide agreed vote); Adafactor. Ranks keep their own state files, renamed after a barrier.
--position: all ranks take rank 0's position. --votes: the moving average of the loss behind the vote is lost."""

import argparse, os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset


class Shard(IterableDataset):
    def __init__(self, rank, epoch, skip):
        self.rank, self.epoch, self.skip = rank, epoch, skip

    def __iter__(self):
        for k in range(self.skip, 40 + 4 * self.rank):
            yield torch.randn(
                6,
                generator=torch.Generator().manual_seed(self.rank * 10_000 + self.epoch * 1000 + k),
            )


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--out", required=True)
    p.add_argument("--position", action="store_true")
    p.add_argument("--votes", action="store_true")
    args = p.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(36)
    os.makedirs(args.out, exist_ok=True)
    net = DDP(nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 1)))
    opt = torch.optim.Adafactor(net.parameters(), 0.02)
    epoch, read, step, average = 0, 0, 0, None
    ready = os.path.join(args.out, "ready")
    if os.path.exists(ready):
        at = int(open(ready).read())
        s = torch.load(os.path.join(args.out, f"{at}-rank{rank}.pt"))
        net.module.load_state_dict(s["net"]), opt.load_state_dict(s["opt"])
        step, average = s["step"], None if args.votes else s["average"]
        s = torch.load(os.path.join(args.out, f"{at}-rank0.pt")) if args.position else s
        epoch, read = s["epoch"], s["read"]
    while step < 20:
        for x in DataLoader(Shard(rank, epoch, read), batch_size=4, num_workers=1):
            read += len(x)
            loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
            vote = torch.tensor(float(average is not None and loss.item() > 1.6 * average))
            average = loss.item() if average is None else 0.8 * average + 0.2 * loss.item()
            opt.zero_grad()
            loss.backward()
            dist.all_reduce(vote)
            if vote == 0:
                opt.step()
            step += 1
            if step % 4 == 0:
                torch.save(
                    {
                        "net": net.module.state_dict(),
                        "opt": opt.state_dict(),
                        "epoch": epoch,
                        "read": read,
                        "step": step,
                        "average": average,
                    },
                    os.path.join(args.out, f"{step}-rank{rank}.pt"),
                )
                dist.barrier()
                if rank == 0:
                    with open(ready + ".tmp", "w") as f:
                        f.write(str(step))
                    os.replace(ready + ".tmp", ready)
                dist.barrier()
            if step == 20:
                break
        else:
            epoch, read = epoch + 1, 0
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
