"""DCP keeps one value per key, whichever rank had it: of equal keys the one in the smallest plan is written. Each rank
draws noise from a generator of its own; `--bug`: all save it under one key, and every rank gets the same one back.
Without it the key names the rank. Two ranks."""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

a = argparse.ArgumentParser()
a.add_argument("--out", type=Path)
a.add_argument("--bug", action="store_true")
a = a.parse_args()
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(5)
x = torch.randn(32, 5)
net = torch.nn.Linear(5, 1)
model = torch.nn.parallel.DistributedDataParallel(net)
opt = torch.optim.SGD(net.parameters(), 0.05)
torch.manual_seed(100 + rank)
key = "generator" if a.bug else f"generator of rank {rank}"
a.out.mkdir(parents=True, exist_ok=True)
step, latest = 0, a.out / "latest"
if latest.exists():
    state = {"net": net.state_dict(), key: torch.get_rng_state(), "step": 0}
    dcp.load(state, checkpoint_id=a.out / latest.read_text())
    net.load_state_dict(state["net"])
    torch.set_rng_state(state[key])
    step = state["step"]
while step < 18:
    batch = x[(step % 4 * 2 + rank) * 4 :][:4]
    loss = (model(batch + 0.1 * torch.randn(4, 5)) - batch[:, :1]).square().mean()
    opt.zero_grad(), loss.backward(), opt.step()
    step += 1
    if step % 4 == 0:
        dcp.save(
            {"net": net.state_dict(), key: torch.get_rng_state(), "step": step},
            checkpoint_id=a.out / f"step-{step}",
        )
        if rank == 0:
            (a.out / "latest.tmp").write_text(f"step-{step}")
            (a.out / "latest.tmp").replace(latest)
        dist.barrier()
dist.barrier()
dist.destroy_process_group()
