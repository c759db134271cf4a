"""What world-size-invariant training costs: `python -m bench.replicas` measures, with interleaved
arms, and prints JSON.

For each number of processes W (gloo, CPU, one thread each) the product's own learners train
ResNet-18 on random images, the global batch being the same for every W. Arms: plain DDP (twice: the
A/A control), replicas with V = W (one each: what the exchange costs) and with V = 8 (what smaller
shards, one after another, cost on top). A round runs a few steps in each arm, the order reversed
every other round. Ratios are medians of the rounds' ratios to plain DDP. Absolute numbers belong to
this machine and this minute; where W is above the number of cores, all arms share them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from bench.program import show
from bench.runs import machine

from ecrl_cli.config.elastic import owned, share
from ecrl_cli.config.schema import ModelConfig, OptimizerConfig
from ecrl_cli.data.loading import SampleBatch
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.models import build as build_model
from ecrl_cli.models.optimization import autocast, build_optimizer, build_scaler, build_scheduler
from ecrl_cli.training.control_client import HeartbeatWriter
from ecrl_cli.training.replicas import ReplicaAllreduce, ReplicaGradient, ReplicaTrainStep, alone
from ecrl_cli.training.train_step import DataParallelTrainStep, TrainStep, WarmUp, wrap

CPU = torch.device("cpu")
REPLICAS = 8
CONCLUSIVE = 0.05  # how far two identical arms may come apart


def learner_of(replicas: int, rank: int, world_size: int, width: int) -> TrainStep:
    """The product's learner for so many replicas; 0: plain DDP."""
    torch.manual_seed(1)
    model = build_model(ModelConfig(name="resnet18", width=width), 10, (3, 32, 32))
    config = OptimizerConfig()
    optimizer = build_optimizer(config, model.parameters())
    scheduler, scaler, cast, pulse = (
        build_scheduler(config, optimizer, 10**6),
        build_scaler("fp32", CPU),
        autocast("fp32", CPU),
        HeartbeatWriter(None, rank),
    )
    if not replicas:
        return DataParallelTrainStep(
            wrap(model, WarmUp((3, 32, 32), CPU, cast, find_unused_parameters=False)),
            optimizer,
            scheduler,
            scaler,
            CPU,
            cast,
            pulse,
        )
    return ReplicaTrainStep(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        scaler=scaler,
        device=CPU,
        autocast=cast,
        heartbeat=pulse,
        seed=1,
        replicas=replicas,
        owned=owned(replicas, rank, world_size),
        exchange=ReplicaAllreduce(replicas, rank, world_size) if world_size > 1 else alone,
        contribution=ReplicaGradient(model),
    )


def batch_of(size: int, rank: int, world_size: int) -> SampleBatch:
    """This rank's share of one random window: the same samples for every arm."""
    generator = torch.Generator().manual_seed(2)
    x, y = (
        torch.randn(size, 3, 32, 32, generator=generator),
        torch.randint(0, 10, (size,), generator=generator),
    )
    mine = share(size, rank, world_size)
    return SampleBatch(
        x[mine.start : mine.stop], y[mine.start : mine.stop], np.arange(mine.start, mine.stop), ""
    )


def segment(learner: TrainStep, batch: SampleBatch, steps: int) -> float:
    """Seconds per step, all ranks beginning together."""
    dist.barrier()
    began = monotonic()
    for step in range(steps):
        learner.run(batch, step + 1)
    dist.barrier()
    return (monotonic() - began) / steps


def measure(rank: int, world_size: int, root: str, options: dict[str, int]) -> None:
    """One rank's whole benchmark at one number of processes; rank 0 leaves its seconds in the file
    of that number.
    """
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{root}/rendezvous{world_size}",
        rank=rank,
        world_size=world_size,
    )
    counts = {"ddp": 0, "ddp_again": 0, "replicas_v_w": world_size, "replicas_v_8": REPLICAS}
    learners = {
        name: learner_of(count, rank, world_size, options["width"])
        for name, count in counts.items()
    }
    batch = batch_of(options["batch"], rank, world_size)
    seconds: dict[str, list[float]] = {name: [] for name in counts}
    for number in range(options["rounds"] + 1):
        for name in counts if number % 2 else reversed(counts):
            spent = segment(learners[name], batch, options["steps"])
            if number:  # the first round warms up
                seconds[name].append(spent)
    if rank == 0:
        (Path(root) / f"{world_size}.json").write_text(json.dumps(seconds))
    dist.barrier()
    dist.destroy_process_group()


def summary(seconds: dict[str, list[float]]) -> dict[str, Any]:
    """The ratios to plain DDP at one number of processes."""
    ratios = {
        name: statistics.median(a / b for a, b in zip(values, seconds["ddp"], strict=True))
        for name, values in seconds.items()
    }
    control = ratios["ddp_again"]
    return {
        "replicas V=W / DDP": round(ratios["replicas_v_w"], 4),
        f"replicas V={REPLICAS} / DDP": round(ratios["replicas_v_8"], 4),
        "A/A: DDP / DDP": round(control, 4),
        "conclusive": abs(control - 1) <= CONCLUSIVE,
        "milliseconds": {
            name: round(statistics.median(values) * 1e3, 2) for name, values in seconds.items()
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=(
            "Measure what fixed replicas cost against plain DDP, per number of processes; prints"
            " JSON."
        )
    )
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2, help="steps per segment")
    parser.add_argument(
        "--batch",
        type=int,
        default=48,
        help="the global batch, a multiple of 8 and of every number of processes",
    )
    parser.add_argument("--width", type=int, default=32, help="channels of the first layer")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    options = parser.parse_args()
    # the product's DDP looks for unused parameters; the ranks would warn that there are none
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    with tempfile.TemporaryDirectory(prefix="bench-replicas-") as root:
        for count in options.processes:
            mp.spawn(measure, (count, root, vars(options) | {"processes": 0}), nprocs=count)
        found = {
            f"W={count}": summary(json.loads((Path(root) / f"{count}.json").read_text()))
            for count in options.processes
        }
    settings = {
        "model": "resnet18",
        "width": options.width,
        "global_batch": options.batch,
        "rounds": options.rounds,
        "steps": options.steps,
    }
    note = (
        ""
        if all(each["conclusive"] for each in found.values())
        else "inconclusive where two identical arms differ by more than 5%"
    )
    document = {"processes": found, "note": note, "settings": settings, "machine": machine()}
    show("replicas", document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
