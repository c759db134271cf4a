"""Checks the simulation against closed forms where these are exact, and with planted bugs, which the same check must find."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import special

from ecrl_cli.replication.overhead.closed_forms import expected_wall
from ecrl_cli.replication.overhead.job_model import JobSpec
from ecrl_cli.replication.overhead.simulate import Failures, Floats, simulate

MTBF = 3600.0  # only ratios matter
EVENTS, REPETITIONS = 100, 1000  # repetitions independent of the study's scale: enough to find the planted bugs
FALSE_ALARM = 0.001  # of all cases together

# By name: interval, checkpoint and restart as shares of the MTBF (Daly's exact wall time); then pause, grain, debt and tax (Wald's).
CASES = {
    **{
        f"rollback: interval {interval:g} M, checkpoint {checkpoint:g} M, restart {restart:g} M": JobSpec(
            interval * MTBF, checkpoint * MTBF, restart * MTBF
        )
        for checkpoint, restart in ((0.001, 0.01), (0.1, 0.3))
        for interval in (0.02, 0.3, 1.0)
    },
    "forward: short pauses": JobSpec(fatal=0, pause=0.003 * MTBF),
    "forward: long pauses, work lost": JobSpec(fatal=0, pause=0.2 * MTBF, grain=0.1 * MTBF, debt=0.05 * MTBF, tax=0.02),
    "forward: half of the work between two failures in hand": JobSpec(fatal=0, pause=0.01 * MTBF, grain=0.5 * MTBF),
}
WORK = 1.37  # in MTBFs times EVENTS: an interval that does not divide the work leaves a shorter last segment, part of the closed form
Walls = Callable[[JobSpec, float, np.random.Generator, int], Floats]


def honest(course: JobSpec, work: float, rng: np.random.Generator, n: int) -> Floats:
    return np.asarray(simulate(course, work, Failures(MTBF), rng, n).wall[0])


def restarts_never_fail(course: JobSpec, work: float, rng: np.random.Generator, n: int) -> Floats:
    """Planted bug: a restart adds its seconds and cannot fail."""
    walls = simulate(replace(course, restart=0.0), work, Failures(MTBF), rng, n)
    return np.asarray(walls.wall[0] + course.restart * walls.failures[0])


def checkpoints_never_fail(course: JobSpec, work: float, rng: np.random.Generator, n: int) -> Floats:
    """Planted bug: a checkpoint adds its seconds and cannot fail."""
    walls = simulate(replace(course, checkpoint=0.0), work, Failures(MTBF), rng, n)
    return np.asarray(walls.wall[0] + course.checkpoint * walls.checkpoints[0])


_STRUCK = "rollback: interval 1 M, checkpoint 0.1 M, restart 0.3 M"
PLANTED: dict[str, tuple[str, Walls]] = {
    "planted: a restart never fails": (_STRUCK, restarts_never_fail),
    "planted: a checkpoint never fails": (_STRUCK, checkpoints_never_fail),
}


@dataclass(frozen=True)
class Agreement:
    """Mean wall time per second of work, simulated and expected; `score`: their difference in standard errors; `freedom`: repetitions - 1."""

    simulated: float
    expected: float
    score: float
    freedom: int

    def within(self, cases: int) -> bool:
        return bool(abs(self.score) <= critical(cases, self.freedom))


def critical(cases: int, freedom: int) -> float:
    """The score that all of `cases` stay below except with probability FALSE_ALARM (Student's t, Bonferroni)."""
    return float(special.stdtrit(freedom, 1 - FALSE_ALARM / (2 * cases)))


def check(name: str, rng: np.random.Generator, events: int = EVENTS, repetitions: int = REPETITIONS) -> Agreement:
    """Run the case `name` of CASES or PLANTED."""
    case, walls = PLANTED.get(name, (name, honest))
    course, work = CASES[case], WORK * events * MTBF
    return agreement(walls(course, work, rng, repetitions) / work, expected_wall(course, work, MTBF) / work)


def agreement(found: Floats, expected: float) -> Agreement:
    mean, error = float(found.mean()), float(found.std(ddof=1)) / math.sqrt(len(found))
    return Agreement(
        mean, expected, (mean - expected) / error if error else 0.0 if mean == expected else math.copysign(1e9, mean - expected), len(found) - 1
    )


def row(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """A table row."""
    return {"case": name, **found, "difference": found["simulated"] / found["expected"] - 1}
