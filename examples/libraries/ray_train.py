"""Ray Train as its guides have it: two workers on gloo, each checkpoint by `ray.train.report` from
rank 0, found again by the same `RunConfig(name, storage_path)` when the script is started anew.
Ray Train knows a checkpoint only once its controller has polled for it (every 2 s). `--committed`
waits for that (`get_all_reported_checkpoints`); the guides do not."""

import argparse
import os
import tempfile
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True, type=Path)
parser.add_argument("--committed", action="store_true")
options = parser.parse_args()


def train(config):
    import ray.train.torch
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch import nn
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    points = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(48, 8, generator=points), torch.arange(48) % 3)
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 3))
    model = ray.train.torch.prepare_model(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    sampler = DistributedSampler(data, world, rank, seed=5)
    loader = DataLoader(data, 2, sampler=sampler, generator=torch.Generator())
    torch.manual_seed(100 + rank)
    step = 0
    if (newest := ray.train.get_checkpoint()) is not None:
        with newest.as_directory() as folder:
            state = torch.load(f"{folder}/state.pt")
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
        torch.set_rng_state(state["generators"][rank])
    for epoch in range(step // len(loader), 2):
        sampler.set_epoch(epoch)
        for number, (x, y) in enumerate(loader, start=epoch * len(loader)):
            if number < step:
                continue
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            step += 1
            if step % 5 == 0:
                generators = [torch.empty_like(torch.get_rng_state()) for _ in range(world)]
                dist.all_gather(generators, torch.get_rng_state())
                with tempfile.TemporaryDirectory() as folder:
                    saved = None
                    if rank == 0:
                        state = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
                        state |= {"generators": generators, "step": step}
                        torch.save(state, f"{folder}/state.pt")
                        saved = ray.train.Checkpoint.from_directory(folder)
                    ray.train.report({"loss": loss.item()}, checkpoint=saved)
                if config["committed"]:
                    mode = ray.train.CheckpointConsistencyMode.COMMITTED
                    ray.train.get_all_reported_checkpoints(mode)


os.environ.setdefault("RAY_worker_niceness", "0")  # 15 otherwise: workers starve beside other work
os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "600")
import ray  # noqa: E402
from ray.train import RunConfig, ScalingConfig  # noqa: E402
from ray.train.torch import TorchTrainer  # noqa: E402

ray.init(num_cpus=2, include_dashboard=False)
TorchTrainer(
    train,
    train_loop_config={"committed": options.committed},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(name="run", storage_path=str(options.out.absolute())),
).fit()
