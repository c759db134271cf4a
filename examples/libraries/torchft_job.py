"""torchft on gloo: two replica groups of one process each, a lighthouse in the first one's process.

    torchrun --nproc-per-node 2 torchft_job.py --out DIR

Both groups take each step together (`min_replica_size=2`) and begin alike (`init_sync=False`).
Checkpoints are the job's own, as in torchft's train_ddp.py: model, optimizer, manager and of each
group its generator. Started anew when all groups have died, each loads the newest one."""

import argparse
import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed import TCPStore
from torch.utils.data import DataLoader, TensorDataset
from torchft import DistributedDataParallel, DistributedSampler, Manager, Optimizer
from torchft.coordination import LighthouseServer
from torchft.process_group import ProcessGroupGloo

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True, type=Path)
out = parser.parse_args().out
out.mkdir(parents=True, exist_ok=True)
torch.set_num_threads(1)
group = int(os.environ["RANK"])
of_launcher = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
meeting = TCPStore(
    os.environ["MASTER_ADDR"],
    int(os.environ["MASTER_PORT"]),
    is_master=group == 0 and not of_launcher,
    wait_for_workers=False,
)
attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
if group == 0:
    lighthouse = LighthouseServer(bind="[::]:0", min_replicas=2, join_timeout_ms=60_000)
    meeting.set(f"lighthouse-{attempt}", lighthouse.address())
points = torch.Generator().manual_seed(1)
data = TensorDataset(torch.randn(48, 8, generator=points), torch.arange(48) % 3)
torch.manual_seed(5)
net = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 3))


def load_state_dict(state):
    net.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


def state_dict():
    return {"model": net.state_dict(), "optimizer": optimizer.state_dict()}


store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
limit = timedelta(seconds=120)
manager = Manager(
    pg=ProcessGroupGloo(timeout=limit),
    load_state_dict=load_state_dict,
    state_dict=state_dict,
    min_replica_size=2,
    use_async_quorum=False,
    init_sync=False,
    timeout=limit,
    quorum_timeout=limit,
    connect_timeout=limit,
    rank=0,
    world_size=1,
    store_addr="localhost",
    store_port=store.port,
    lighthouse_addr=meeting.get(f"lighthouse-{attempt}").decode(),
    replica_id=f"group-{group}",
)
model = DistributedDataParallel(manager, net)
optimizer = Optimizer(manager, torch.optim.AdamW(net.parameters(), lr=0.01))
torch.manual_seed(100 + group)
newest = out / "newest"
if newest.exists():
    saved = out / newest.read_text()
    state = torch.load(saved / "all.pt")
    load_state_dict(state)
    manager.load_state_dict(state["manager"])
    torch.set_rng_state(torch.load(saved / f"group-{group}.pt"))
sampler = DistributedSampler(data, group, 2, group_rank=0, num_replicas=1, seed=5)
loader = DataLoader(data, 2, sampler=sampler, generator=torch.Generator())
for epoch in range(manager.current_step() // len(loader), 2):
    sampler.set_epoch(epoch)
    for number, (x, y) in enumerate(loader, start=epoch * len(loader)):
        if number < manager.current_step():
            continue
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        step = manager.current_step()
        if step % 5 == 0:
            folder = out / f"step-{step}"
            folder.mkdir(exist_ok=True)
            torch.save(torch.get_rng_state(), folder / f"group-{group}.pt")
            meeting.set(f"{attempt}-{step}-{group}", "saved")
            if group == 0:
                torch.save(state_dict() | {"manager": manager.state_dict()}, folder / "all.pt")
                meeting.get(f"{attempt}-{step}-1")
                part = out / "newest.part"
                part.write_text(folder.name)
                part.replace(newest)
manager.shutdown()
