"""A simulated job: its parameters, independent of the strategy's name, and its event-driven
simulation for many repetitions and intervals at once.

Between two failures everything is deterministic, so one loop step takes every repetition to its
next failure or its end. Failures may occur during work, during a checkpoint (which is then written
again) and while the job is down.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class JobCosts:
    """Seconds. `interval`: work between two checkpoints (inf: none). `checkpoint`: cost of one. A
    failure is fatal with probability `fatal`: the job returns to the checkpoint and is down for
    `restart`. After other failures it is down for `pause`, loses a uniform share of `grain` (the
    work in progress) if it was working, and `debt` on top. A failure during either wait starts it
    again. `tax`: relative slowdown of all work.
    """

    interval: float = math.inf
    checkpoint: float = 0.0
    restart: float = 0.0
    fatal: float = 1.0
    pause: float = 0.0
    grain: float = 0.0
    debt: float = 0.0
    tax: float = 0.0


Floats = NDArray[np.float64]
_FOR_EVER = 1e30  # stands for no checkpoints; infinity times zero would be NaN
_ROUNDING = 1e-9
# failures per expected failure of an undisturbed job; beyond that the job counts as endless
_PATIENCE = 40


@dataclass(frozen=True)
class FailureProcess:
    """Failures of the whole system: independent gaps of mean `mtbf` seconds, exponential or, with
    `shape` != 1, Weibull.
    """

    mtbf: float
    shape: float = 1.0

    def gaps(self, rng: np.random.Generator, n: int) -> Floats:
        if self.shape == 1.0:
            return rng.exponential(self.mtbf, n)
        return self.mtbf / math.gamma(1 + 1 / self.shape) * rng.weibull(self.shape, n)


@dataclass(frozen=True)
class Walls:
    """By interval (rows) and repetition: wall seconds (inf: given up as endless), failures,
    checkpoints written.
    """

    wall: Floats
    failures: Floats
    checkpoints: Floats


def system_mtbf(worker_mtbf: float, workers: int) -> float:
    """System MTBF of `workers` that fail independently and exponentially, where each failure stops
    the job.
    """
    return worker_mtbf / workers


def simulate(
    spec: JobCosts,
    work: float,
    failures: FailureProcess,
    rng: np.random.Generator,
    repetitions: int,
) -> Walls:
    """Simulate `work` seconds of work `repetitions` times. The same generator gives the same
    failures for every job.
    """
    return sweep(spec, (spec.interval,), work, failures, rng, repetitions)


def sweep(
    spec: JobCosts,
    intervals: Sequence[float],
    work: float,
    failures: FailureProcess,
    rng: np.random.Generator,
    repetitions: int,
) -> Walls:
    """Like `simulate`, for each of `intervals` under the same failures (common random numbers)."""
    every = np.array([[min(interval, _FOR_EVER)] for interval in intervals])
    job = _Job(spec, every, work * (1 + spec.tax), repetitions)
    for _ in range(200 + math.ceil(_PATIENCE * work / failures.mtbf)):
        gaps, shares, draws = (
            failures.gaps(rng, repetitions),
            rng.random(repetitions),
            rng.random(repetitions),
        )
        job.until_failure(gaps)
        if not job.active.any():
            break
        job.fail(shares, draws < spec.fatal)
    return Walls(np.where(job.active, np.inf, job.wall), job.failures, job.written)


@dataclass
class _Job:
    """State of every repetition of every interval. `target`: seconds of work to attempt; `done`: up
    to the last checkpoint; `since`: done after it; `owed`: part of `target` added by failures since
    the last checkpoint; `down`: seconds to wait; `fallen`: back to the checkpoint.
    """

    spec: JobCosts
    every: Floats
    work: float
    repetitions: int
    shape: tuple[int, int] = field(init=False)

    def __post_init__(self) -> None:
        shape = (len(self.every), self.repetitions)
        self.wall, self.done, self.since, self.owed, self.down, self.failures, self.written = (
            np.zeros(shape) for _ in range(7)
        )
        self.target = np.full(shape, self.work)
        self.active, self.fallen, self.waiting = (
            np.ones(shape, bool),
            np.zeros(shape, bool),
            np.zeros(shape, bool),
        )

    def until_failure(self, gaps: Floats) -> None:
        """Advance to the next failure, `gaps` after the last one, or to the end."""
        free = gaps - self.down
        segment = np.minimum(self.every - self.since, self.target - self.done - self.since)
        rest = self.target - self.done - self.since - segment
        left = 1 + np.ceil(rest / self.every - _ROUNDING)
        needed = segment + rest + left * self.spec.checkpoint
        ends = self.active & (free >= needed)
        self.wall += np.where(ends, self.down + needed, np.where(self.active, gaps, 0.0))
        self.written += np.where(ends, left, 0.0)
        self.active &= ~ends
        self.waiting = self.active & (free < 0)
        self._advance(np.where(self.active & (free >= 0), free, 0.0), segment)
        self.failures += self.active

    def _advance(self, free: Floats, segment: Floats) -> None:
        """Work for `free` seconds, fewer than are left."""
        cost = self.spec.checkpoint
        within = free < segment + cost
        behind = free - segment - cost
        whole = np.where(within, 0.0, np.floor(np.maximum(behind, 0.0) / (self.every + cost)))
        saved = np.where(within, 0.0, self.since + segment + whole * self.every)
        self.done += saved
        self.since = np.where(
            within, self.since + np.minimum(free, segment), behind - whole * (self.every + cost)
        )
        self.since = np.minimum(self.since, np.minimum(self.every, self.target - self.done))
        self.owed = np.where(within, self.owed, 0.0)
        self.written += np.where(within, 0.0, 1 + whole)

    def fail(self, shares: Floats, fatal: NDArray[np.bool_]) -> None:
        """Apply a failure to all active jobs; those not fatally hit lose `shares` of the work in
        progress.
        """
        spec = self.spec
        falls = self.active & (fatal | (self.waiting & self.fallen))
        self.target -= np.where(falls, self.owed, 0.0)
        self.owed = np.where(falls, 0.0, self.owed)
        self.since = np.where(falls, 0.0, self.since)
        lost = np.where(
            self.active & ~falls, spec.debt + np.where(self.waiting, 0.0, spec.grain * shares), 0.0
        )
        self.target += lost
        self.owed += lost
        self.fallen = falls
        self.down = np.where(falls, spec.restart, spec.pause)
