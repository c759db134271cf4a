"""What a deferred capture costs the training: `python -m bench.deferred` measures, in one run with
interleaved arms, and prints JSON.

Two DDP processes (gloo, CPU) train ResNet-18 with SGD momentum on random images, as in bench.stall.
Arms: no checkpoint (twice: the A/A control), deferred (overlapped with
checkpoint.capture=deferred), the same with capture=copy, blocking, and
torch.distributed.checkpoint's async_save. A stall of the deferred arm is all that training waits:
at the checkpoint, and before the next update if the copy is not finished by then. In every arm the
parameters lie in the memory that the deferred arm shares with its writer. Ratios are medians of the
rounds' ratios. Absolute numbers belong to this machine and this minute.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.multiprocessing as mp
from bench.goals import at_most, note
from bench.program import add_folder_option, bench_folder, show
from bench.runs import machine
from bench.stall import (
    WORLD,
    Arm,
    begun,
    config_of,
    dcp_async,
    median_ratio,
    ours,
    segment,
    writers,
)

from ecrl_cli.config.schema import RunConfig
from ecrl_cli.records.events import CheckpointLine
from ecrl_cli.records.journal import read_journal
from ecrl_cli.records.layout import RunLayout

GOALS = {
    "deferred stall / blocking stall": 0.01,
    "deferred stall / DCP async_save stall": 0.02,
    "step with a write in flight / step without": 1.02,
}


def deferring(strategy: str) -> RunConfig:
    config = config_of("overlapped")
    return (
        replace(config, checkpoint=replace(config.checkpoint, capture="deferred"))
        if strategy == "deferred"
        else config_of(strategy)
    )


def lines_of(layout: RunLayout) -> tuple[CheckpointLine, ...]:
    return read_journal(layout.attempt(0).checkpoints, CheckpointLine).events


def waited(layout: RunLayout) -> float:
    """Seconds for which the last checkpoint's copy was waited for before an update."""
    lines = lines_of(layout)
    last = max((line.global_step for line in lines), default=0)
    return sum(
        line.stall_s for line in lines if line.event == "waited" and line.global_step == last
    )


def train(rank: int, root: str, rounds: int, steps: int, batch: int) -> None:
    """One rank's whole benchmark; rank 0 leaves its seconds in `seconds.json`."""
    bench, folder = begun(rank, root, batch), Path(root)
    deferred = ours(bench, folder, "deferred", deferring("deferred"))
    bench.step()  # the step that is watched before a capture is deferred
    arms: dict[str, Arm | None] = {"none": None, "none_again": None, "deferred": deferred}
    arms |= {name: ours(bench, folder, name) for name in ("overlapped", "blocking")}
    arms["dcp_async"] = dcp_async(bench, folder)
    for number in range(rounds + 1):
        if number == 1:
            bench.seconds = {}  # the first round warms up
        order = list(arms.items())
        for name, arm in order if number % 2 else reversed(order):
            segment(bench, arm, name, steps)
            if name == "deferred" and rank == 0:
                bench.note("waited", waited(RunLayout(folder / name)))
                bench.seconds["stall deferred"][-1] += bench.seconds["waited"][-1]
    if rank == 0:
        (folder / "seconds.json").write_text(json.dumps(bench.seconds))
    dist.barrier()


def summary(seconds: dict[str, list[float]], layout: RunLayout) -> dict[str, Any]:
    """The document that is printed."""
    ratios = {
        "deferred stall / blocking stall": median_ratio(
            seconds, "stall deferred", "stall blocking"
        ),
        "deferred stall / DCP async_save stall": median_ratio(
            seconds, "stall deferred", "stall dcp_async"
        ),
        "step with a write in flight / step without": median_ratio(
            seconds, "step deferred", "step none"
        ),
    }
    control = {
        "A/A: step without / step without": median_ratio(seconds, "step none_again", "step none"),
        "capture=copy: stall / blocking stall": median_ratio(
            seconds, "stall overlapped", "stall blocking"
        ),
        "capture=copy: step with a write in flight / step without": median_ratio(
            seconds, "step overlapped", "step none"
        ),
        "DCP async_save: step in flight / step without": median_ratio(
            seconds, "step dcp_async", "step none"
        ),
    }
    copied = [
        line for line in lines_of(layout) if line.event == "submitted" and not line.deferred_bytes
    ]
    assert not copied, f"{len(copied)} captures were copies: {copied[0].reason}"
    conclusive = abs(control["A/A: step without / step without"] - 1) <= 0.03
    return {
        "ratios": {name: round(value, 4) for name, value in ratios.items()},
        "goals": {name: at_most(ratios[name], goal) for name, goal in GOALS.items()},
        "controls": {name: round(value, 4) for name, value in control.items()},
        "conclusive": conclusive,
        "note": note(conclusive),
        "milliseconds": {
            name: round(statistics.median(values) * 1e3, 2)
            for name, values in sorted(seconds.items())
        },
        "waits_before_an_update": (
            f"{sum(value > 0 for value in seconds['waited'])} of {len(seconds['waited'])}"
        ),
        "rounds": len(seconds["step none"]),
        "machine": machine(),
    }


def both_arms(root: Path) -> dict[Path, RunConfig]:
    """The runs whose checkpoints a background writer writes."""
    return {root / name: deferring(name) for name in ("deferred", "overlapped")}


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Measure what a deferred capture costs the training; prints JSON."
    )
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4, help="steps per segment, at least 2")
    parser.add_argument("--batch", type=int, default=36)
    add_folder_option(parser)
    options = parser.parse_args()
    with bench_folder("deferred", options.folder) as root, writers(both_arms(root)):
        mp.spawn(train, (str(root), options.rounds, options.steps, options.batch), nprocs=WORLD)
        document = summary(
            json.loads((root / "seconds.json").read_text()), RunLayout(root / "deferred")
        )
    return show("deferred", document)


if __name__ == "__main__":
    sys.exit(main())
