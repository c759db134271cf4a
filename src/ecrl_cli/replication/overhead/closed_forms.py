"""Closed forms: the best checkpoint interval by Young and by Daly, and expected wall times.

Young 1974: "A first order approximation to the optimum checkpoint interval". Daly 2006: "A higher order estimate of the optimum checkpoint
interval for restart dumps". All in seconds; an interval is working time without the checkpoint that ends it. `mtbf`: of the system.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ecrl_cli.replication.overhead.job_model import JobSpec

_MOST = 700.0  # exp of more overflows a float


def young(checkpoint: float, mtbf: float) -> float:
    """sqrt(2 delta M)."""
    return math.sqrt(2 * checkpoint * mtbf)


def daly_first(checkpoint: float, mtbf: float, restart: float) -> float:
    """Daly's first order: sqrt(2 delta (M + R)) - delta; at least one delta outside its range of validity."""
    return max(math.sqrt(2 * checkpoint * (mtbf + restart)) - checkpoint, checkpoint)


def daly(checkpoint: float, mtbf: float) -> float:
    """Daly's higher order (his equation 37): a perturbation series in sqrt(delta / 2M); M for large delta."""
    if checkpoint >= 2 * mtbf:
        return mtbf
    small = math.sqrt(checkpoint / (2 * mtbf))
    return math.sqrt(2 * checkpoint * mtbf) * (1 + small / 3 + small**2 / 9) - checkpoint


def exact_interval(checkpoint: float, mtbf: float) -> float:
    """The minimum of Daly's exact wall time: (1 - t/M) exp((t + delta)/M) = 1, whatever the restart costs."""
    return bisect(lambda t: math.log1p(-t / mtbf) + (t + checkpoint) / mtbf, 0.0, mtbf)


def bisect(rises_or_falls: Callable[[float], float], low: float, high: float) -> float:
    """The zero of a monotone function between `low` and `high` (both excluded), nearly to float precision."""
    rising = rises_or_falls(low) < 0
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if (rises_or_falls(middle) < 0) == rising else (low, middle)
    return (low + high) / 2


def segment_s(length: float, mtbf: float, restart: float) -> float:
    """Expected wall time until `length` seconds (work and its checkpoint) pass without a failure; each failure starts the segment again after
    `restart` seconds that may fail themselves: M exp(R/M) (exp(length/M) - 1). Infinite on float overflow."""
    if (length + restart) / mtbf > _MOST:
        return math.inf
    return mtbf * math.exp(restart / mtbf) * math.expm1(length / mtbf)


def expected_wall(course: JobSpec, work: float, mtbf: float) -> float:
    """Expected wall time of `work` under exponential failures.

    Exact if every failure is fatal (Daly), or if none is and there are no checkpoints (Wald). In between an approximation: a segment is lengthened
    by the mean cost of its survived failures, then lost as a whole with the fatal ones.
    """
    attempted = work * (1 + course.tax)
    if course.fatal < 1:
        attempted, stretch = attempted * _slowed(course, mtbf), _paused(course, mtbf)
    else:
        stretch = 1.0
    if math.isinf(attempted) or math.isinf(stretch):
        return math.inf
    if course.fatal == 0:
        writes = 0.0 if math.isinf(course.interval) else math.ceil(attempted / course.interval - 1e-9) * course.checkpoint
        return (attempted + writes) * stretch
    return _segments(course, attempted, stretch, mtbf)


def exact(course: JobSpec) -> bool:
    """Whether `expected_wall` is exact here."""
    return course.fatal == 1 or (course.fatal == 0 and math.isinf(course.interval))


def _segments(course: JobSpec, attempted: float, stretch: float, mtbf: float) -> float:
    """Segment lengths: each interval and the rest, both with their checkpoint."""
    fatal_mtbf = mtbf / course.fatal
    restart = course.restart if course.fatal == 1 else fatal_mtbf * math.log1p(math.expm1(min(course.restart / mtbf, _MOST)) * mtbf / fatal_mtbf)
    whole = math.floor(attempted / course.interval + 1e-9)
    rest = max(0.0, attempted - whole * course.interval)
    total = whole * segment_s((course.interval + course.checkpoint) * stretch, fatal_mtbf, restart)
    return total + (segment_s((rest + course.checkpoint) * stretch, fatal_mtbf, restart) if rest > 1e-9 * course.interval else 0.0)


def _slowed(course: JobSpec, mtbf: float) -> float:
    """Work attempted in total, as survived failures lose some: A = W + (failures in A) x (loss of each)."""
    lost = (1 - course.fatal) * (course.grain / 2 + course.debt * math.exp(min(course.pause / mtbf, _MOST)))
    return 1 / (1 - lost / mtbf) if lost < mtbf else math.inf


def _paused(course: JobSpec, mtbf: float) -> float:
    """Wall time per second attempted: a pause P that starts again on a failure takes M (exp(P/M) - 1) on average."""
    if course.pause / mtbf > _MOST:
        return math.inf
    return 1 + (1 - course.fatal) * math.expm1(course.pause / mtbf)
