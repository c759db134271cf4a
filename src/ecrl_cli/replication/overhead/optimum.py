"""Searches for the best checkpoint interval by simulation; all intervals see the same failures, so differences are not noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ecrl_cli.replication.overhead.closed_forms import daly, daly_first, exact_interval, young
from ecrl_cli.replication.overhead.job_model import JobSpec
from ecrl_cli.replication.overhead.simulate import Failures, Floats, sweep
from ecrl_cli.replication.overhead.spread import halves, told

FACTOR, POINTS = 4.0, 33  # intervals tried: from a quarter of Daly's to four times it
LEAST_INTERVALS = 20
FORMULAS = ("young", "daly_first", "daly", "exact")


@dataclass(frozen=True)
class Optimum:
    """Intervals in seconds; `low` to `high`: those whose paired difference to the best tried includes zero (95%, t).

    `intervals`, `overheads`: the curve, as shares of the work. `at`: overhead at the interval of each of FORMULAS and at the best one tried
    (`simulated`). `surely`: lower 95% bound of the paired excess of Daly's overhead over the best; may be negative.
    """

    young: float
    daly_first: float
    daly: float
    exact: float
    simulated: float
    low: float
    high: float
    intervals: tuple[float, ...]
    overheads: tuple[float, ...]
    at: dict[str, float]
    surely: float


def search(course: JobSpec, failures: Failures, events: int, repetitions: int, rng: np.random.Generator) -> Optimum | None:
    """The best interval of `course` (its own is ignored); None if a job with one of the intervals does not end."""
    mtbf, cost = failures.mtbf, course.checkpoint
    named = {
        "young": young(cost, mtbf),
        "daly_first": daly_first(cost, mtbf, course.restart),
        "daly": daly(cost, mtbf),
        "exact": exact_interval(cost, mtbf),
    }
    grid = np.geomspace(named["daly"] / FACTOR, named["daly"] * FACTOR, POINTS)
    work = max(events * mtbf, LEAST_INTERVALS * float(grid[-1]))
    walls = sweep(replace(course, interval=math.inf), (*grid, *named.values()), work, failures, rng, repetitions).wall / work - 1
    if not np.isfinite(walls).all():
        return None
    curve = walls[:POINTS]
    best = int(curve.mean(axis=1).argmin())
    low, high = _alike(grid, curve, best)
    apart = walls[POINTS + list(named).index("daly")] - curve[best]
    at = {name: float(walls[POINTS + number].mean()) for number, name in enumerate(named)}
    return Optimum(
        **named,
        simulated=_vertex(grid, curve.mean(axis=1), best),
        low=low,
        high=high,
        intervals=tuple(grid.tolist()),
        overheads=tuple(curve.mean(axis=1).tolist()),
        at=at | {"simulated": float(curve[best].mean())},
        surely=told(apart).low,
    )


def _vertex(grid: Floats, overheads: Floats, best: int) -> float:
    """Minimum of a parabola over log interval through the points within a factor of two of the best."""
    near = np.abs(np.log(grid / grid[best])) <= math.log(2) + 1e-9
    x = np.log(grid[near] / grid[best])
    bend, slope, _ = np.polyfit(x, overheads[near], 2)
    if bend <= 0:
        return float(grid[best])
    return float(grid[best] * math.exp(min(max(-slope / (2 * bend), float(x.min())), float(x.max()))))


def _alike(grid: Floats, curve: Floats, best: int) -> tuple[float, float]:
    """The shortest and the longest interval whose paired difference to the best one tried includes zero."""
    apart = curve - curve[best]
    kept = grid[apart.mean(axis=1) - halves(apart) <= 0]
    return float(kept.min()), float(kept.max())
