"""DDP with PowerSGD's hook, whose state is saved with model and optimizer as its documentation has it. Its errors are kept
by bucket, and in its first step DDP has its parameters in another order: each error goes to other parameters.
Default: two passes without the hook before the load let DDP order its bucket, in each process alike. --bug: none."""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

a = argparse.ArgumentParser()
a.add_argument("--out", type=Path)
a.add_argument("--bug", action="store_true")
a = a.parse_args()
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(2)
data = torch.randn(64, 24)
net = torch.nn.Sequential(*[torch.nn.Linear(24, 24) for _ in range(3)])
ddp = torch.nn.parallel.DistributedDataParallel(net)
for _ in range(0 if a.bug else 2):
    ddp(torch.ones(1, 24)).sum().backward()
    ddp.zero_grad()
opt = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
state = powerSGD_hook.PowerSGDState(
    None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=0.5
)
a.out.mkdir(parents=True, exist_ok=True)
step, mine = 0, a.out / f"rank{rank}.pt"
done = min((int(f.read_text()) for f in a.out.glob("done*")), default=0)
if done:
    step, weights, moments, state = torch.load(a.out / f"{done}-rank{rank}.pt", weights_only=False)
    net.load_state_dict(weights), opt.load_state_dict(moments)
ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
sampler = torch.utils.data.DistributedSampler(data, 2, rank, seed=1)
for epoch in range(step // 8, 3):
    sampler.set_epoch(epoch)
    loader = torch.utils.data.DataLoader(data, 4, sampler=sampler, generator=torch.Generator())
    for number, batch in enumerate(loader):
        if epoch * 8 + number < step:
            continue
        opt.zero_grad()
        (ddp(batch) - batch).square().mean().backward()
        opt.step()
        step += 1
        if step % 5 == 0:
            file = a.out / f"{step}-rank{rank}.pt"
            torch.save((step, net.state_dict(), opt.state_dict(), state), f"{file}.tmp")
            Path(f"{file}.tmp").replace(file)
            dist.barrier()
            Path(a.out / f"done{rank}.tmp").write_text(str(step))
            Path(a.out / f"done{rank}.tmp").replace(a.out / f"done{rank}")
dist.barrier()
dist.destroy_process_group()
