"""DDP with broadcast_buffers=False: each rank has its own running statistics. `--bug`: those of rank 0 alone are
saved, and every rank gets them at a restart. Two or three processes."""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist

a = argparse.ArgumentParser()
a.add_argument("--out", type=Path)
a.add_argument("--bug", action="store_true")
a = a.parse_args()
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(5)
x = torch.randn(32, 5)
net = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 1))
model = torch.nn.parallel.DistributedDataParallel(net, broadcast_buffers=False)
opt = torch.optim.AdamW(net.parameters(), 0.02)
a.out.mkdir(parents=True, exist_ok=True)
step, file = 0, a.out / "last.pt"
if file.exists():
    s = torch.load(file)
    net.load_state_dict(s["net"]), opt.load_state_dict(s["opt"])
    step = s["step"]
    if not a.bug:
        for place, value in zip(net.buffers(), s["buffers"][rank]):
            place.copy_(value)
sampler = torch.utils.data.DistributedSampler(x, 2, rank, seed=1)
for epoch in range(step // 4, 6):
    sampler.set_epoch(epoch)
    for number, batch in enumerate(
        torch.utils.data.DataLoader(x, 4, sampler=sampler, generator=torch.Generator())
    ):
        if epoch * 4 + number < step:
            continue
        loss = (model(batch) - batch[:, :1]).square().mean()
        opt.zero_grad(), loss.backward(), opt.step()
        step += 1
        if step % 3 == 0:
            every = [None, None]
            dist.all_gather_object(every, [value.clone() for value in net.buffers()])
            if rank == 0:
                torch.save(
                    {
                        "net": net.state_dict(),
                        "opt": opt.state_dict(),
                        "step": step,
                        "buffers": every,
                    },
                    f"{file}.tmp",
                )
                Path(f"{file}.tmp").replace(file)
dist.barrier()
dist.destroy_process_group()
