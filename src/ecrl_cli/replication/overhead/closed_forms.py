"""Closed forms: the best checkpoint interval by Young and by Daly, expected wall times; a published
claim by them; and the simulation against them.

Young 1974: "A first order approximation to the optimum checkpoint interval". Daly 2006: "A higher
order estimate of the optimum checkpoint interval for restart dumps". All in seconds; an interval is
working time without the checkpoint that ends it. `mtbf`: of the system.

The claim: "at 100,000 GPUs you need checkpoints every 2 minutes just to maintain 90% training
efficiency". Read as: two minutes is the longest interval with 90% of the time spent on work. It has
three unknowns (MTBF, checkpoint, restart); the same source gives one, 10 hours between failures at
4,000 GPUs, or 40,000 hours per GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from ecrl_cli.replication.overhead.simulate import FailureProcess, Floats, JobCosts, simulate

_MOST = 700.0  # exp of more overflows a float


def young(checkpoint: float, mtbf: float) -> float:
    """sqrt(2 delta M)."""
    return math.sqrt(2 * checkpoint * mtbf)


def daly_first(checkpoint: float, mtbf: float, restart: float) -> float:
    """Daly's first order: sqrt(2 delta (M + R)) - delta; at least one delta outside its range of
    validity.
    """
    return max(math.sqrt(2 * checkpoint * (mtbf + restart)) - checkpoint, checkpoint)


def daly(checkpoint: float, mtbf: float) -> float:
    """Daly's higher order (his equation 37): a perturbation series in sqrt(delta / 2M); M for large
    delta.
    """
    if checkpoint >= 2 * mtbf:
        return mtbf
    small = math.sqrt(checkpoint / (2 * mtbf))
    return math.sqrt(2 * checkpoint * mtbf) * (1 + small / 3 + small**2 / 9) - checkpoint


def exact_interval(checkpoint: float, mtbf: float) -> float:
    """The minimum of Daly's exact wall time: (1 - t/M) exp((t + delta)/M) = 1, whatever the restart
    costs.
    """
    return bisect(lambda t: math.log1p(-t / mtbf) + (t + checkpoint) / mtbf, 0.0, mtbf)


def bisect(rises_or_falls: Callable[[float], float], low: float, high: float) -> float:
    """The zero of a monotone function between `low` and `high` (both excluded), nearly to float
    precision.
    """
    rising = rises_or_falls(low) < 0
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if (rises_or_falls(middle) < 0) == rising else (low, middle)
    return (low + high) / 2


def segment_s(length: float, mtbf: float, restart: float) -> float:
    """Expected wall time until `length` seconds (work and its checkpoint) pass without a failure;
    each failure starts the segment again after `restart` seconds that may fail themselves: M
    exp(R/M) (exp(length/M) - 1). Infinite on float overflow.
    """
    if (length + restart) / mtbf > _MOST:
        return math.inf
    return mtbf * math.exp(restart / mtbf) * math.expm1(length / mtbf)


def expected_wall(spec: JobCosts, work: float, mtbf: float) -> float:
    """Expected wall time of `work` under exponential failures.

    Exact if every failure is fatal (Daly), or if none is and there are no checkpoints (Wald). In
    between an approximation: a segment is lengthened by the mean cost of its survived failures,
    then lost as a whole with the fatal ones.
    """
    attempted = work * (1 + spec.tax)
    if spec.fatal < 1:
        attempted, stretch = attempted * _slowed(spec, mtbf), _paused(spec, mtbf)
    else:
        stretch = 1.0
    if math.isinf(attempted) or math.isinf(stretch):
        return math.inf
    if spec.fatal == 0:
        writes = (
            0.0
            if math.isinf(spec.interval)
            else math.ceil(attempted / spec.interval - 1e-9) * spec.checkpoint
        )
        return (attempted + writes) * stretch
    return _segments(spec, attempted, stretch, mtbf)


def exact(spec: JobCosts) -> bool:
    """Whether `expected_wall` is exact here."""
    return spec.fatal == 1 or (spec.fatal == 0 and math.isinf(spec.interval))


def _segments(spec: JobCosts, attempted: float, stretch: float, mtbf: float) -> float:
    """Segment lengths: each interval and the rest, both with their checkpoint."""
    fatal_mtbf = mtbf / spec.fatal
    restart = (
        spec.restart
        if spec.fatal == 1
        else fatal_mtbf
        * math.log1p(math.expm1(min(spec.restart / mtbf, _MOST)) * mtbf / fatal_mtbf)
    )
    whole = math.floor(attempted / spec.interval + 1e-9)
    rest = max(0.0, attempted - whole * spec.interval)
    total = whole * segment_s((spec.interval + spec.checkpoint) * stretch, fatal_mtbf, restart)
    return total + (
        segment_s((rest + spec.checkpoint) * stretch, fatal_mtbf, restart)
        if rest > 1e-9 * spec.interval
        else 0.0
    )


def _slowed(spec: JobCosts, mtbf: float) -> float:
    """Work attempted in total, as survived failures lose some: A = W + (failures in A) x (loss of
    each).
    """
    lost = (1 - spec.fatal) * (spec.grain / 2 + spec.debt * math.exp(min(spec.pause / mtbf, _MOST)))
    return 1 / (1 - lost / mtbf) if lost < mtbf else math.inf


def _paused(spec: JobCosts, mtbf: float) -> float:
    """Wall time per second attempted: a pause P that starts again on a failure takes M (exp(P/M) -
    1) on average.
    """
    if spec.pause / mtbf > _MOST:
        return math.inf
    return 1 + (1 - spec.fatal) * math.expm1(spec.pause / mtbf)


WORKERS, INTERVAL, EFFICIENCY = 100_000, 120.0, 0.9
WORKER_MTBF = 10 * 3600.0 * 4000
_LONGEST, _NOTHING = 1e9, 1e-6


@dataclass(frozen=True)
class Reading:
    """Seconds (None: no such value). `needed_mtbf`: per worker, at which two minutes is the
    interval of 90%. At the published MTBF: `longest` interval with 90%, `efficiency` of two minutes
    and of the best interval, and the `restart` at which the claim holds.
    """

    needed_mtbf: float | None
    longest: float | None
    efficiency: float
    best_interval: float | None
    best_efficiency: float
    restart: float | None


def efficiency(interval: float, checkpoint: float, restart: float, mtbf: float) -> float:
    """Work over expected wall time, exponential failures (Daly's exact form)."""
    return interval / segment_s(interval + checkpoint, mtbf, restart)


def read_claim(checkpoint: float, restart: float) -> Reading:
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
    """The system's MTBF at which INTERVAL reaches EFFICIENCY; None if checkpoints alone cost
    more.
    """
    if INTERVAL / (INTERVAL + checkpoint) <= EFFICIENCY:
        return None
    return bisect(
        lambda mtbf: efficiency(INTERVAL, checkpoint, restart, mtbf) - EFFICIENCY, 1.0, _LONGEST
    )


def longest(checkpoint: float, restart: float, mtbf: float) -> float | None:
    """The longest interval that reaches EFFICIENCY; None if even the best does not."""
    best = _best(checkpoint, mtbf)
    if efficiency(best, checkpoint, restart, mtbf) < EFFICIENCY:
        return None
    return bisect(
        lambda interval: efficiency(interval, checkpoint, restart, mtbf) - EFFICIENCY,
        best,
        100 * mtbf,
    )


def slowest_restart(checkpoint: float, mtbf: float) -> float | None:
    """The restart at which INTERVAL just reaches EFFICIENCY; None if it does not even with none."""
    if efficiency(INTERVAL, checkpoint, 0.0, mtbf) < EFFICIENCY:
        return None
    return bisect(
        lambda restart: efficiency(INTERVAL, checkpoint, restart, mtbf) - EFFICIENCY,
        0.0,
        100 * mtbf,
    )


def _best(checkpoint: float, mtbf: float) -> float:
    return exact_interval(max(checkpoint, _NOTHING), mtbf)


MTBF = 3600.0  # only ratios matter
# repetitions independent of the study's scale: enough to find the planted bugs
EVENTS, REPETITIONS = 100, 1000
FALSE_ALARM = 0.001  # of all cases together

# By name: interval, checkpoint and restart as shares of the MTBF (Daly's exact wall time); then
# pause, grain, debt and tax (Wald's).
CASES = {
    **{
        f"rollback: interval {interval:g} M, checkpoint {checkpoint:g} M, restart {restart:g} M": (
            JobCosts(interval * MTBF, checkpoint * MTBF, restart * MTBF)
        )
        for checkpoint, restart in ((0.001, 0.01), (0.1, 0.3))
        for interval in (0.02, 0.3, 1.0)
    },
    "forward: short pauses": JobCosts(fatal=0, pause=0.003 * MTBF),
    "forward: long pauses, work lost": JobCosts(
        fatal=0, pause=0.2 * MTBF, grain=0.1 * MTBF, debt=0.05 * MTBF, tax=0.02
    ),
    "forward: half of the work between two failures in hand": JobCosts(
        fatal=0, pause=0.01 * MTBF, grain=0.5 * MTBF
    ),
}
# in MTBFs times EVENTS: an interval that does not divide the work leaves a shorter last segment,
# part of the closed form
WORK = 1.37
Walls = Callable[[JobCosts, float, np.random.Generator, int], Floats]


def honest(spec: JobCosts, work: float, rng: np.random.Generator, n: int) -> Floats:
    return np.asarray(simulate(spec, work, FailureProcess(MTBF), rng, n).wall[0])


def restarts_never_fail(spec: JobCosts, work: float, rng: np.random.Generator, n: int) -> Floats:
    """Planted bug: a restart adds its seconds and cannot fail."""
    walls = simulate(replace(spec, restart=0.0), work, FailureProcess(MTBF), rng, n)
    return np.asarray(walls.wall[0] + spec.restart * walls.failures[0])


def checkpoints_never_fail(spec: JobCosts, work: float, rng: np.random.Generator, n: int) -> Floats:
    """Planted bug: a checkpoint adds its seconds and cannot fail."""
    walls = simulate(replace(spec, checkpoint=0.0), work, FailureProcess(MTBF), rng, n)
    return np.asarray(walls.wall[0] + spec.checkpoint * walls.checkpoints[0])


_CASE = "rollback: interval 1 M, checkpoint 0.1 M, restart 0.3 M"
PLANTED: dict[str, tuple[str, Walls]] = {
    "planted: a restart never fails": (_CASE, restarts_never_fail),
    "planted: a checkpoint never fails": (_CASE, checkpoints_never_fail),
}


@dataclass(frozen=True)
class Agreement:
    """Mean wall time per second of work, simulated and expected; `score`: their difference in
    standard errors; `freedom`: repetitions - 1.
    """

    simulated: float
    expected: float
    score: float
    freedom: int

    def within(self, cases: int) -> bool:
        return bool(abs(self.score) <= critical(cases, self.freedom))


def critical(cases: int, freedom: int) -> float:
    """The score that all of `cases` stay below except with probability FALSE_ALARM (Student's t,
    Bonferroni).
    """
    return float(special.stdtrit(freedom, 1 - FALSE_ALARM / (2 * cases)))


def check(
    name: str, rng: np.random.Generator, events: int = EVENTS, repetitions: int = REPETITIONS
) -> Agreement:
    """Run the case `name` of CASES or PLANTED."""
    case, walls = PLANTED.get(name, (name, honest))
    spec, work = CASES[case], WORK * events * MTBF
    return agreement(
        walls(spec, work, rng, repetitions) / work, expected_wall(spec, work, MTBF) / work
    )


def agreement(found: Floats, expected: float) -> Agreement:
    mean, error = float(found.mean()), float(found.std(ddof=1)) / math.sqrt(len(found))
    return Agreement(
        mean,
        expected,
        (
            (mean - expected) / error
            if error
            else 0.0
            if mean == expected
            else math.copysign(1e9, mean - expected)
        ),
        len(found) - 1,
    )
