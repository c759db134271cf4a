"""What a step of `ecrl train` costs beside the same step in a plain script: `python -m bench.step`
measures both, and prints JSON.

Two DDP processes (gloo, CPU, one thread each) train ResNet-18 on fake images of 32 x 32 pixels, and
the digits CNN. Arms: `ecrl train` with its journal, hashes of the inputs, heartbeats and state
digests (at their default), no checkpoints and no failures; and, twice (the A/A control),
bench/plain_loop.py under torchrun: the same model, data set, order, augmentation, optimizer and
schedule, without anything of ECRL around the step. Arms are runs of their own, one after the other,
the order reversed every other round. A run's figure is the median time from one end of a step to
the next on rank 0, without the first WARM_UP steps. Ratios are medians of the rounds' ratios.
Absolute numbers belong to this machine and this minute.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.goals import at_most, note
from bench.program import bench_folder, show
from bench.runs import machine, train

RANKS, WARM_UP = 2, 8
ARMS = ("plain", "ecrl", "plain_again")


@dataclass(frozen=True)
class StepCase:
    """`goal`: ecrl / plain; `conclusive`: how far two identical arms may come apart."""

    overrides: tuple[str, ...]
    steps: int
    goal: float
    conclusive: float


CASES = {
    "resnet18": StepCase(
        (
            "dataset=fake",
            "model=resnet18",
            "model.width=64",
            "dataset.image_size=32",
            "global_batch=16",
        ),
        30,
        1.02,
        0.01,
    ),
    "digits CNN": StepCase(
        ("dataset=digits", "model=small_cnn", "model.width=16", "global_batch=64"), 400, 1.10, 0.03
    ),
}


def ours(folder: Path, case: StepCase) -> float:
    """Seconds of a step of `ecrl train`."""
    how = [
        "device=cpu",
        f"world_size={RANKS}",
        f"target_steps={case.steps}",
        "checkpoint=none",
        "failure=none",
    ]
    records = train(folder, *case.overrides, *how)
    return between([line.at for line in records.logs(0).ranks[0].events])


def plain(folder: Path, case: StepCase) -> float:
    """Seconds of a step of the plain script."""
    folder.mkdir()
    agent = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    script = [
        str(Path(__file__).with_name("plain_loop.py")),
        str(folder / "times.json"),
        str(case.steps),
        *case.overrides,
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *agent, *script],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"torchrun ended with {done.returncode}: {done.stderr[-2000:]}")
    return between(json.loads((folder / "times.json").read_text()))


def between(ends: list[float]) -> float:
    return statistics.median(b - a for a, b in itertools.pairwise(ends[WARM_UP:]))


def measured(root: Path, name: str, rounds: int) -> dict[str, Any]:
    case = CASES[name]
    found: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for number in range(rounds):
        for arm in ARMS if number % 2 else reversed(ARMS):
            folder = root / f"{number}-{arm}"
            found[arm].append(ours(folder, case) if arm == "ecrl" else plain(folder, case))
            shutil.rmtree(folder)
    ratios = {
        arm: [a / b for a, b in zip(values, found["plain"], strict=True)]
        for arm, values in found.items()
    }
    control = statistics.median(ratios["plain_again"])
    conclusive = abs(control - 1) <= case.conclusive
    return {
        "goals": {"ecrl / plain": at_most(statistics.median(ratios["ecrl"]), case.goal)},
        "controls": {"A/A: plain / plain": round(control, 4)},
        "each_round": {
            arm: [round(value, 4) for value in values]
            for arm, values in ratios.items()
            if arm != "plain"
        },
        "conclusive": conclusive,
        "note": note(conclusive, case.conclusive),
        "step_ms": {
            arm: round(1000 * statistics.median(values), 3) for arm, values in found.items()
        },
        "settings": {"steps": case.steps, "run": list(case.overrides)},
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Measure a step of ecrl train against a plain DDP loop; prints JSON."
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    options = parser.parse_args()
    with bench_folder("step") as root:
        found = {name: measured(root, name, options.rounds) for name in options.cases}
    settings = {"rounds": options.rounds, "ranks": RANKS}
    return show("step", {"cases": found, **settings, "machine": machine()})


if __name__ == "__main__":
    sys.exit(main())
