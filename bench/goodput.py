"""What failures cost under each recovery: `python -m bench.goodput` trains the same run with each
under one trace of kills, and prints JSON.

ResNet-18 on random images, processes forked from a zygote (gloo, CPU, one thread each). The trace
is drawn from a seed: the run is cut into as many stretches as there are kills, and in each a random
rank dies at a random step, somewhere in its forward or backward pass. Arms, all with overlapped
checkpoints: conf/variant's `blk` (all ranks restart from the newest checkpoint), `spares` (a warm
spare takes the dead rank's place, all load the checkpoint), `mem` (likewise, from a snapshot in
memory), `rollback` (the interrupted mini-batch again, from the survivors' memory) and `forward`
(the survivors finish it without the dead rank's samples). `clean` (no failures, no checkpoints) is
run before, between and after them: each arm stands against its two neighbours, and these against
each other are the A/A control.

The bound is the least wall time that the trace leaves anybody: the wall time of `clean`, and per
kill
- the detection: from the kill to the supervisor's notice of it, as `blk` has it on record, where an
  attempt ends with the notice (under the other
  recoveries it ends when the survivors have left);
- the inevitable replay: what the victim had done of the step in which it died (its own spans and
  the instant of the kill, as on record);
  nothing for `forward`, which gives up the dead rank's samples instead of doing the step again.
Steps that are done again because a checkpoint is older than that are not inevitable: other arms do
not do them. All that live recovery adds to a step is in its arms and not in `clean`. An arm's share
of the bound is the bound over its own wall time (both end at the same step); the goal is for the
best arm. Wall time is the goodput clock of metrics.json: from the supervisor's launch to the
target.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from bench.goals import at_least, note
from bench.program import bench_folder, show
from bench.runs import deaths, machine, train

from ecrl_cli.history.load import RunRecords
from ecrl_cli.history.timeline import timeline
from ecrl_cli.verify.verify_run import verify_run

ARMS = ("rollback", "forward", "mem", "spares", "blk")
GOAL = 0.95
CONCLUSIVE = 0.03  # how far two identical arms may come apart
CALIBRATION = 24  # steps of the run that tells how many fill the time


@dataclass(frozen=True)
class Shape:
    """What all arms train."""

    ranks: int
    width: int
    batch: int
    steps: int
    trace: tuple[str, ...]

    def overrides(self, variant: str) -> list[str]:
        workload = [
            f"model.width={self.width}",
            f"global_batch={self.batch}",
            f"world_size={self.ranks}",
            f"target_steps={self.steps}",
        ]
        common = [
            "device=cpu",
            "dataset=fake",
            "model=resnet18",
            *workload,
            "supervision=zygote",
            f"variant={variant}",
        ]
        if variant == "clean":
            return common
        # every arm writes its checkpoints in the background; the spares the others' variants ask
        # for themselves
        common += ["supervision.spares=1"] if variant == "mem" else ["checkpoint=overlapped"]
        return [
            *common,
            f"checkpoint.every={max(2, self.steps // 8)}",
            "failure=listed",
            f"failure.entries=[{','.join(self.trace)}]",
        ]


def draw(seed: int, kills: int, steps: int, ranks: int) -> tuple[str, ...]:
    """The trace, in the words of failure.entries; nothing in the first and the last steps, where a
    run starts and ends.
    """
    generator = np.random.default_rng(seed)
    edges = np.linspace(0.05, 0.95, kills + 1) * steps
    found = []
    for first, last in pairwise(edges):
        step, moment = (
            int(generator.uniform(first, last)),
            ("forward", "backward")[int(generator.integers(2))],
        )
        found.append(
            f"kill@{max(2, step)}.{moment}/{generator.uniform():.2f}"
            f":{int(generator.integers(ranks))}"
        )
    return tuple(found)


def fill(root: Path, shape: Shape, seconds: float) -> int:
    """As many steps as a clean run does in so many seconds."""
    records = train(root / "calibration", *shape.overrides("clean"))
    lines = records.logs(0).ranks[0].events
    return max(40, int(seconds / statistics.median(line.seconds for line in lines[1:])))


@dataclass(frozen=True)
class Found:
    """One run of one arm."""

    wall_s: float
    detect_s: float
    interrupted_s: float
    back_s: tuple[float, ...]
    seconds: dict[str, float]
    verdict: str


def measure(run_dir: Path, shape: Shape, variant: str) -> Found:
    records = train(run_dir, *shape.overrides(variant))
    died = deaths(records)
    if variant != "clean" and len(died) != len(shape.trace):
        raise RuntimeError(f"{variant}: {len(died)} of {len(shape.trace)} kills were injected")
    account = timeline(records)
    return Found(
        wall_s=account.wall_s,
        detect_s=detection(records),
        interrupted_s=sum(each.interrupted_s for each in died),
        back_s=tuple(each.back_s for each in died),
        seconds=account.seconds,
        verdict=verify_run(run_dir).status,
    )


def detection(records: RunRecords) -> float:
    """From each kill to the end of the attempt that it struck, all together."""
    attempts = {a.attempt: a for a in records.supervisor.attempts} if records.supervisor else {}
    ends = [(attempts[fired.attempt].ended_at, fired.at) for fired in records.fired]
    return sum(end - at for end, at in ends if end is not None)


def summary(clean: list[Found], found: dict[str, list[tuple[Found, float]]]) -> dict[str, Any]:
    """`found`: by arm its runs, each with what the clean runs before and after it took on
    average.
    """
    control = statistics.median(
        max(a.wall_s, b.wall_s) / min(a.wall_s, b.wall_s) for a, b in pairwise(clean)
    )
    detection_s = statistics.mean(run.detect_s for run, _ in found["blk"])
    arms = {arm: arm_summary(arm, runs, detection_s) for arm, runs in found.items()}
    best = max(arms, key=lambda arm: float(arms[arm]["share of the bound"]))
    reached = arms[best]["share of the bound"]
    conclusive = abs(control - 1) <= CONCLUSIVE
    return {
        "best": best,
        "goals": {"bound / wall of the best arm": at_least(reached, GOAL)},
        "arms": arms,
        "detection_s": round(detection_s, 4),
        "clean_wall_s": [round(each.wall_s, 3) for each in clean],
        "controls": {"A/A: slower / faster of two neighbours": round(control, 4)},
        "conclusive": conclusive,
        "note": note(conclusive),
    }


def arm_summary(arm: str, against: list[tuple[Found, float]], detection_s: float) -> dict[str, Any]:
    """Medians over the rounds."""
    runs, clean = [run for run, _ in against], [clean_s for _, clean_s in against]
    replay = [0.0 if arm == "forward" else each.interrupted_s for each in runs]
    bounds = [
        clean_s + detection_s + replay_s for clean_s, replay_s in zip(clean, replay, strict=True)
    ]
    seconds = {
        name: statistics.median(each.seconds[name] for each in runs) for name in runs[0].seconds
    }
    return {
        "share of the bound": round(
            statistics.median(
                bound / each.wall_s for bound, each in zip(bounds, runs, strict=True)
            ),
            4,
        ),
        "goodput / clean": round(
            statistics.median(
                clean_s / each.wall_s for clean_s, each in zip(clean, runs, strict=True)
            ),
            4,
        ),
        "wall_s": [round(each.wall_s, 3) for each in runs],
        "inevitable_replay_s": round(statistics.median(replay), 4),
        "kill_to_next_step_s": [[round(value, 3) for value in each.back_s] for each in runs],
        "seconds": {name: round(value, 3) for name, value in seconds.items() if value >= 0.0005},
        "verdicts": [each.verdict for each in runs],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=(
            "Measure goodput under a trace of random kills, per recovery, against the bound; prints"
            " JSON."
        )
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--seconds", type=float, default=24.0, help="how long a clean run is to take"
    )
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1337, help="of the trace")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--width", type=int, default=16, help="channels of the first layer")
    parser.add_argument("--batch", type=int, default=16, help="the global batch")
    options = parser.parse_args()
    with bench_folder("goodput") as root:
        steps = fill(
            root,
            Shape(options.ranks, options.width, options.batch, CALIBRATION, ()),
            options.seconds,
        )
        shape = Shape(
            options.ranks,
            options.width,
            options.batch,
            steps,
            draw(options.seed, options.kills, steps, options.ranks),
        )
        clean = [measure(root / "clean", shape, "clean")]
        found: dict[str, list[tuple[Found, float]]] = {}
        for number in range(options.rounds):
            for arm in ARMS if number % 2 == 0 else ARMS[::-1]:
                run = measure(root / f"{number}-{arm}", shape, arm)
                clean.append(measure(root / f"{number}-behind-{arm}", shape, "clean"))
                found.setdefault(arm, []).append(
                    (run, statistics.mean(each.wall_s for each in clean[-2:]))
                )
    settings = {
        "model": "resnet18",
        **{name: getattr(shape, name) for name in ("width", "batch", "ranks", "steps", "trace")},
    }
    return show("goodput", {**summary(clean, found), "settings": settings, "machine": machine()})


if __name__ == "__main__":
    sys.exit(main())
