"""What a checkpoint after every step costs: `python -m bench.every_step` prints JSON.

`ecrl train` of ResNet-18 with momentum (89 MB of state) on two processes, images of 32 x 32 pixels.
Arms: no checkpoints, twice (the A/A control), and checkpoint.every=1 with deferred captures. Arms
are runs of their own, one after the other, the order reversed every other round. A run's goodput
is its steps per second between the ends of its first and last step, without the first WARM_UP;
ratios are medians of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

from bench.goals import at_least, note
from bench.program import add_folder_option, bench_folder, show
from bench.runs import machine, train

GOAL, CONCLUSIVE, WARM_UP = 0.97, 0.03, 4
RUN = (
    "device=cpu",
    "dataset=fake",
    "model=resnet18",
    "model.width=64",
    "dataset.image_size=32",
    "world_size=2",
    "global_batch=36",
    "optimizer.momentum=0.9",
    "failure=none",
)
NONE = ("checkpoint=none",)
ARMS = {
    "none": NONE,
    "every step": ("checkpoint=overlapped", "checkpoint.capture=deferred", "checkpoint.every=1"),
    "none again": NONE,
}


def goodput(folder: Path, overrides: tuple[str, ...], steps: int) -> float:
    """Committed steps per second of one run."""
    records = train(folder, *RUN, *overrides, f"target_steps={steps}")
    ends = [line.at for line in records.logs(0).ranks[0].events][WARM_UP:]
    return (len(ends) - 1) / (ends[-1] - ends[0])


def measured(root: Path, rounds: int, steps: int) -> dict[str, Any]:
    goodputs: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for number in range(rounds):
        for arm in ARMS if number % 2 else reversed(ARMS):
            folder = root / f"{number}-{arm.replace(' ', '-')}"
            goodputs[arm].append(goodput(folder, ARMS[arm], steps))
            shutil.rmtree(folder)

    def ratio(arm: str) -> float:
        return statistics.median(
            a / b for a, b in zip(goodputs[arm], goodputs["none"], strict=True)
        )

    control = ratio("none again")
    conclusive = abs(control - 1) <= CONCLUSIVE
    return {
        "goals": {"goodput, a checkpoint every step / none": at_least(ratio("every step"), GOAL)},
        "controls": {"A/A: none / none": round(control, 4)},
        "conclusive": conclusive,
        "note": note(conclusive, CONCLUSIVE),
        "steps_per_second": {
            arm: round(statistics.median(values), 4) for arm, values in goodputs.items()
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Measure the goodput with a checkpoint after every step; prints JSON."
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    add_folder_option(parser)
    options = parser.parse_args()
    with bench_folder("every-step", options.folder) as root:
        document = measured(root, options.rounds, options.steps)
    settings = {"rounds": options.rounds, "steps": options.steps, "run": RUN}
    return show("every_step", {**document, "settings": settings, "machine": machine()})


if __name__ == "__main__":
    sys.exit(main())
