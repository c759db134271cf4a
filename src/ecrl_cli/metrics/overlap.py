"""Savings of asynchronous checkpointing: stall against wall time, and the cost of a write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ecrl_cli.metrics.statistics import Summary, ratio_interval, ratio_of_means, summary


@dataclass(frozen=True)
class RunCosts:
    """Seconds of one run; those of its checkpoints over all that were `submitted`, however they
    ended.
    """

    wall_s: float
    stall_s: float
    serialize_s: float
    write_s: float
    submitted: float


@dataclass(frozen=True)
class Writes:
    """The checkpoints of several runs: all that were submitted, each once. Seconds are per
    submitted checkpoint.
    """

    submitted: int
    stall_s: float
    serialize_s: float
    write_s: float


@dataclass(frozen=True)
class Overlap:
    """Overlapped runs against blocking ones over pairs, in seconds per run.

    `efficiency`: wall time saved / stall saved, a ratio of means, with its BCa interval; below 1,
    the background writer slowed down training. None if no stall was saved, the interval also if a
    single pair saved none.
    """

    pairs: int
    stall_saved_s: Summary
    wall_saved_s: Summary
    efficiency: float | None
    efficiency_low: float | None
    efficiency_high: float | None
    overlapped: Writes
    blocking: Writes


def overlap(overlapped: Sequence[RunCosts], blocking: Sequence[RunCosts]) -> Overlap:
    """Pairs the k-th of one with the k-th of the other. ValueError if there are no pairs."""
    stall = [b.stall_s - a.stall_s for a, b in zip(overlapped, blocking, strict=True)]
    wall = [b.wall_s - a.wall_s for a, b in zip(overlapped, blocking, strict=True)]
    low, high = ratio_interval(wall, stall) or (None, None)
    efficiency = ratio_of_means(wall, stall) if sum(stall) > 0 else None
    return Overlap(
        len(stall),
        summary(stall),
        summary(wall),
        efficiency,
        low,
        high,
        _writes(overlapped),
        _writes(blocking),
    )


def _writes(runs: Sequence[RunCosts]) -> Writes:
    submitted = int(sum(run.submitted for run in runs))
    each = [
        sum(run.stall_s for run in runs),
        sum(run.serialize_s for run in runs),
        sum(run.write_s for run in runs),
    ]
    return Writes(submitted, *(total / submitted if submitted else 0.0 for total in each))
