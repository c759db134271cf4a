"""The published claim "at 100,000 GPUs you need checkpoints every 2 minutes just to maintain 90% training efficiency".

Read as: two minutes is the longest interval with 90% of the time spent on work. It has three unknowns (MTBF, checkpoint, restart); the same source
gives one, 10 hours between failures at 4,000 GPUs, or 40,000 hours per GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from ecrl_cli.replication.overhead.closed_forms import bisect, exact_interval, segment_s

WORKERS, INTERVAL, EFFICIENCY = 100_000, 120.0, 0.9
WORKER_MTBF = 10 * 3600.0 * 4000
_LONGEST, _NOTHING = 1e9, 1e-6


@dataclass(frozen=True)
class Reading:
    """Seconds (None: no such value). `needed_mtbf`: per worker, at which two minutes is the interval of 90%. At the published MTBF: `longest`
    interval with 90%, `efficiency` of two minutes and of the best interval, and the `restart` at which the claim holds."""

    needed_mtbf: float | None
    longest: float | None
    efficiency: float
    best_interval: float | None
    best_efficiency: float
    restart: float | None


def efficiency(interval: float, checkpoint: float, restart: float, mtbf: float) -> float:
    """Work over expected wall time, exponential failures (Daly's exact form)."""
    return interval / segment_s(interval + checkpoint, mtbf, restart)


def read(checkpoint: float, restart: float) -> Reading:
    mtbf, least = WORKER_MTBF / WORKERS, needed(checkpoint, restart)
    best = _best(checkpoint, mtbf)
    return Reading(
        needed_mtbf=None if least is None else WORKERS * least,
        longest=longest(checkpoint, restart, mtbf),
        efficiency=efficiency(INTERVAL, checkpoint, restart, mtbf),
        best_interval=best if checkpoint else None,
        best_efficiency=efficiency(best, checkpoint, restart, mtbf),
        restart=slowest_restart(checkpoint, mtbf),
    )


def needed(checkpoint: float, restart: float) -> float | None:
    """The system's MTBF at which INTERVAL reaches EFFICIENCY; None if checkpoints alone cost more."""
    if INTERVAL / (INTERVAL + checkpoint) <= EFFICIENCY:
        return None
    return bisect(lambda mtbf: efficiency(INTERVAL, checkpoint, restart, mtbf) - EFFICIENCY, 1.0, _LONGEST)


def longest(checkpoint: float, restart: float, mtbf: float) -> float | None:
    """The longest interval that reaches EFFICIENCY; None if even the best does not."""
    best = _best(checkpoint, mtbf)
    if efficiency(best, checkpoint, restart, mtbf) < EFFICIENCY:
        return None
    return bisect(lambda interval: efficiency(interval, checkpoint, restart, mtbf) - EFFICIENCY, best, 100 * mtbf)


def slowest_restart(checkpoint: float, mtbf: float) -> float | None:
    """The restart at which INTERVAL just reaches EFFICIENCY; None if it does not even with none."""
    if efficiency(INTERVAL, checkpoint, 0.0, mtbf) < EFFICIENCY:
        return None
    return bisect(lambda restart: efficiency(INTERVAL, checkpoint, restart, mtbf) - EFFICIENCY, 0.0, 100 * mtbf)


def _best(checkpoint: float, mtbf: float) -> float:
    return exact_interval(max(checkpoint, _NOTHING), mtbf)
