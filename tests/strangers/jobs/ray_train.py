"""Ray Train on two CPU workers (gloo): rank 0 gives each checkpoint, with every rank's generator, to ray.train.report; the same name and storage path find it again when the script is started anew.
--bug: the optimizer's state is not loaded. --no_wait: training goes on while the controller has not noted the checkpoint yet, which it does when it polls next. --failures N: Ray starts the workers again itself."""

import argparse, os, tempfile

p = argparse.ArgumentParser()
p.add_argument("--out", required=True)
p.add_argument("--failures", type=int, default=0)
for f in ("bug", "no_wait"):
    p.add_argument("--" + f, action="store_true")


def train(config):
    import ray.train
    import ray.train.torch
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    x = torch.randn(48, 6)
    net = ray.train.torch.prepare_model(
        nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
    )
    torch.manual_seed(100 + rank)
    opt = torch.optim.AdamW(net.parameters(), 1e-2)
    sampler = DistributedSampler(x, world, rank, shuffle=True, seed=3)
    # With a generator of its own the loader draws nothing from the one that is restored.
    loader = DataLoader(
        TensorDataset(x), batch_size=2, sampler=sampler, generator=torch.Generator()
    )
    epoch, done, step = 0, 0, 0
    if (kept := ray.train.get_checkpoint()) is not None:
        with kept.as_directory() as d:
            s = torch.load(f"{d}/state.pt")
        net.module.load_state_dict(s["net"])
        if not config["bug"]:
            opt.load_state_dict(s["opt"])
        epoch, done, step = s["epoch"], s["done"], s["step"]
        torch.set_rng_state(s["rng"][rank])
    for epoch in range(epoch, 2):
        sampler.set_epoch(epoch)
        for i, (b,) in enumerate(loader):
            if i < done:
                continue
            loss = (net(b) - b.sum(1, keepdim=True)).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % 5 == 0:
                rng = [torch.empty_like(torch.get_rng_state()) for _ in range(world)]
                dist.all_gather(rng, torch.get_rng_state())
                with tempfile.TemporaryDirectory() as d:
                    saved = None
                    if rank == 0:
                        s = {"net": net.module.state_dict(), "opt": opt.state_dict(), "rng": rng}
                        torch.save(
                            s | {"epoch": epoch, "done": i + 1, "step": step}, f"{d}/state.pt"
                        )
                        saved = ray.train.Checkpoint.from_directory(d)
                    ray.train.report({"loss": loss.item()}, checkpoint=saved)
                if not config["no_wait"]:
                    ray.train.get_all_reported_checkpoints(
                        ray.train.CheckpointConsistencyMode.COMMITTED
                    )
        done = 0


if __name__ == "__main__":
    args = p.parse_args()
    # Workers run at niceness 15 otherwise, and starve beside other work.
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "600")
    if args.no_wait:  # 2 s otherwise: makes the moment longer, to be met each time
        os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = "20"
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    there = "RAY_ADDRESS" in os.environ  # a cluster that was started before
    ray.init(**({} if there else {"num_cpus": 2, "include_dashboard": False}))
    TorchTrainer(
        train,
        train_loop_config=vars(args),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="run",
            storage_path=os.path.abspath(args.out),
            failure_config=FailureConfig(max_failures=args.failures),
        ),
    ).fit()
