"""Costs of an arm: the stall of each save, the time to come back after each death, steps done
again, goodput.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from statistics import median

from ecrl_cli.audit.components import Judged, walk


@dataclass(frozen=True)
class Costs:
    """In seconds. `save_seconds`: how long the job stood in each save. `restart_seconds`: from the
    last step before a death to the end of the first one after it. `goodput`: the share of the wall
    time that the steps which count took, each at the median of its attempt; None if no wall time is
    on record.
    """

    attempts: int
    steps: int
    attempt_seconds: tuple[float, ...]
    save_seconds: tuple[float, ...]
    restart_seconds: tuple[float, ...]
    steps_done_again: int
    goodput: float | None


def costs_of(judged: Judged) -> Costs:
    attempts = {
        number: min(
            (process for process in processes if process.steps),
            key=lambda process: process.rank,
            default=None,
        )
        for number, processes in sorted(judged.arm.attempts.items())
    }
    wall = sum(launch.seconds for launch in judged.arm.launches)
    usual = {
        number: median(step.seconds for step in process.steps)
        for number, process in attempts.items()
        if process is not None and process.steps
    }
    useful = sum(usual.get(judged.path.attempt_of(number), 0.0) for number in judged.path.steps)
    timed = [
        process.steps for process in attempts.values() if process is not None and process.steps
    ]
    pairs = [(before[-1].at, after[0].at) for before, after in itertools.pairwise(timed)]
    # steps written by hand may have no time
    restarts = [after - before for before, after in pairs if 0 < before < after]
    return Costs(
        attempts=len(judged.arm.attempts),
        steps=judged.path.last,
        attempt_seconds=tuple(launch.seconds for launch in judged.arm.launches),
        save_seconds=tuple(
            float(save["seconds"])
            for process in judged.arm.processes
            for save in process.saves
            if save.get("seconds")
        ),
        restart_seconds=tuple(restarts),
        steps_done_again=judged.path.steps_done_again,
        goodput=(
            min(1.0, useful / wall) if wall > 0 and any(True for _ in walk(judged.path)) else None
        ),
    )
