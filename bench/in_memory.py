"""What a snapshot in memory every step costs, and what it saves: `python -m bench.in_memory` prints
JSON.

The cost: two DDP processes (gloo, CPU) train ResNet-18 with SGD momentum on random images, in one
run with interleaved arms: no checkpoint (twice: the A/A control), blocking, overlapped, in_memory.
A round runs a segment of steps in each arm, the order reversed every other round; after a segment's
first step the arm saves a checkpoint, which has ended before the others begin; after each of these
in_memory takes a snapshot. A step of an arm costs its mean, plus the checkpoint's stall shared by
EVERY steps. Ratios are medians of the rounds' ratios.

What it saves: the same training through `ecrl train`, killed at the same random steps, with
blocking checkpoints every EVERY steps and with in_memory; steps done again per kill, as
metrics.json has them.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.multiprocessing as mp
from bench.goals import at_most, note
from bench.program import bench_folder, show
from bench.runs import machine
from bench.stall import WORLD, Bench, begun, median_ratio, memory_copy, writers

from ecrl_cli.checkpoint.capture.shared_memory import SnapshotPair
from ecrl_cli.checkpoint.strategies.strategy import Strategy, StrategyInputs, make_strategy
from ecrl_cli.config.schema import CheckpointConfig, RunConfig
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.records.journal import Journal, read_json
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.span_clock import SpanClock

EVERY = 50
ARMS = ("none", "none_again", "blocking", "overlapped", "in_memory")
REPLAYED = "steps done again per kill, in_memory / checkpoints every 50"
GOALS = {REPLAYED: 0.05}


def config_of(strategy: str) -> RunConfig:
    return replace(
        RunConfig(),
        checkpoint=CheckpointConfig(
            strategy=strategy.removesuffix("_again"), keep=2, max_inflight=2
        ),
    )


def strategy_of(bench: Bench, root: Path, name: str) -> Strategy:
    layout = RunLayout(root / name)
    clock = SpanClock(Journal(layout.attempt(0).spans(bench.rank)), 0, monotonic(), "compute")
    if name == "in_memory":
        made = make_strategy(
            StrategyInputs(
                config_of(name),
                bench.train_state,
                layout,
                0,
                clock,
                snapshots=SnapshotPair.create(),
            )
        )
    else:
        made = make_strategy(StrategyInputs(config_of(name), bench.train_state, layout, 0, clock))
    made.prepare()
    return made


def segment(bench: Bench, name: str, strategy: Strategy, steps: int) -> None:
    """A step, the checkpoint and its end, then steps with what the arm does after each: their
    mean.
    """
    bench.step()
    dist.barrier()
    began = monotonic()
    strategy.snapshot(bench.progress())
    strategy.save(bench.progress())
    bench.note(f"stall {name}", monotonic() - began)
    strategy.flush()
    times = []
    for _ in range(steps - 1):
        spent = bench.step()
        began = monotonic()
        strategy.snapshot(bench.progress())
        kept = monotonic() - began
        times.append(spent + kept)
        if name == "in_memory":
            bench.note("snapshot", kept)
    bench.note(f"step {name}", statistics.mean(times) + bench.seconds[f"stall {name}"][-1] / EVERY)


def train(rank: int, root: str, rounds: int, steps: int, batch: int) -> None:
    """One rank's whole benchmark; rank 0 leaves its seconds in `seconds.json`."""
    bench = begun(rank, root, batch)
    arms = {name: strategy_of(bench, Path(root), name) for name in ARMS}
    copy = memory_copy(bench)
    for number in range(rounds + 1):
        if number == 1:
            bench.seconds = {}  # the first round warms up
        for name in ARMS if number % 2 else reversed(ARMS):
            segment(bench, name, arms[name], steps)
        bench.note("copy", copy())
    if rank == 0:
        (Path(root) / "seconds.json").write_text(json.dumps(bench.seconds))
    dist.barrier()


def cost(rounds: int, steps: int, batch: int) -> dict[str, list[float]]:
    """Seconds by what they were spent in."""
    with bench_folder("in-memory") as root:
        with writers({root / name: config_of(name) for name in ("overlapped", "in_memory")}):
            mp.spawn(train, (str(root), rounds, steps, batch), nprocs=WORLD)
        found: dict[str, list[float]] = read_json(root / "seconds.json")
        return found


def replayed(strategy: str, kills: list[int], target: int) -> float:
    """Steps done again per kill."""
    root = Path(tempfile.mkdtemp(prefix="bench-in-memory-"))
    entries = ",".join(
        f"kill@{step}.backward:{number % WORLD}" for number, step in enumerate(kills)
    )
    shape = [
        f"target_steps={target}",
        f"world_size={WORLD}",
        "model.width=8",
        "global_batch=48",
        "supervision.launcher=zygote",
    ]
    failures = [
        "failure=listed",
        f"failure.entries=[{entries}]",
        f"checkpoint={strategy}",
        f"checkpoint.every={EVERY}",
    ]
    try:
        command = [
            sys.executable,
            "-m",
            "ecrl_cli.cli.main",
            "train",
            *shape,
            *failures,
            f"run_dir={root}/run",
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        metrics = read_json(RunLayout(root / "run").metrics)
        return float(metrics["replayed_steps"]) / len(kills)
    finally:
        shutil.rmtree(root)


def summary(seconds: dict[str, list[float]], again: dict[str, float]) -> dict[str, Any]:
    """The document that is printed."""
    control = median_ratio(seconds, "step none_again", "step none")
    ratios = {
        f"step {name} / step none": median_ratio(seconds, f"step {name}", "step none")
        for name in ARMS[2:]
    }
    copied = statistics.median(seconds["snapshot"]) / statistics.median(seconds["copy"])
    ratios |= {
        "snapshot / memory copy": copied,
        REPLAYED: again["in_memory"] / again["blocking"] if again["blocking"] else 0.0,
    }
    conclusive = abs(control - 1) <= 0.03
    return {
        "ratios": {name: round(value, 4) for name, value in ratios.items()},
        "goals": {name: at_most(ratios[name], goal) for name, goal in GOALS.items()},
        "controls": {"A/A: step without / step without": round(control, 4)},
        "conclusive": conclusive,
        "note": note(conclusive),
        "steps_done_again_per_kill": again,
        "milliseconds": {
            name: round(statistics.median(values) * 1e3, 2)
            for name, values in sorted(seconds.items())
        },
        "rounds": len(seconds["copy"]),
        "machine": machine(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=(
            "Measure snapshots in memory: what they cost per step, what they save per kill; prints"
            " JSON."
        )
    )
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=4, help="steps per segment, at least 2")
    parser.add_argument("--batch", type=int, default=36)
    parser.add_argument("--kills", type=int, default=8)
    options = parser.parse_args()
    target = EVERY * max(4, options.kills // 2)
    kills = sorted(random.Random(1337).sample(range(2, target), options.kills))
    again = {strategy: replayed(strategy, kills, target) for strategy in ("blocking", "in_memory")}
    document = summary(cost(options.rounds, options.steps, options.batch), again)
    return show("in_memory", document)


if __name__ == "__main__":
    sys.exit(main())
