"""Runs the trials: each maps its facts and its random generator to numbers and keeps nothing in
memory. One searches for the best interval.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from ecrl_cli.config.studies import RecoveryOverhead
from ecrl_cli.replication.overhead import closed_forms
from ecrl_cli.replication.overhead.closed_forms import (
    daly,
    daly_first,
    exact,
    exact_interval,
    expected_wall,
    young,
)
from ecrl_cli.replication.overhead.record_index import Failure
from ecrl_cli.replication.overhead.simulate import FailureProcess, Floats, JobCosts, simulate, sweep
from ecrl_cli.replication.overhead.strategies import (
    BY_NAME,
    STRATEGIES,
    FailureScenario,
    Loss,
    Parts,
    checkpoint_restart,
    job_spec,
    waiting,
)


class Estimate(NamedTuple):
    """The mean and its 95% interval."""

    mean: float
    low: float
    high: float


def told(values: Floats) -> Estimate:
    """The estimate of one row of repetitions."""
    mean, half = float(values.mean()), float(halves(values[np.newaxis])[0])
    return Estimate(mean, mean - half, mean + half)


def inverse(told: Estimate) -> Estimate:
    """Work as a share of wall time, from wall times in multiples of the work: the inverse of their
    mean, at most 1.
    """
    return Estimate(1 / told.mean, 1 / told.high, 1 / max(1.0, told.low))


def halves(rows: Floats) -> Floats:
    """Half-width of the mean's interval, per row."""
    n = rows.shape[1]
    return np.asarray(float(special.stdtrit(n - 1, 0.975)) * rows.std(axis=1, ddof=1) / np.sqrt(n))


FACTOR, POINTS = 4.0, 33  # intervals tried: from a quarter of Daly's to four times it
LEAST_INTERVALS = 20
FORMULAS = ("young", "daly_first", "daly", "exact")


@dataclass(frozen=True)
class Optimum:
    """Intervals in seconds; `low` to `high`: those whose paired difference to the best tried
    includes zero (95%, t).

    `intervals`, `overheads`: the curve, as shares of the work. `at`: overhead at the interval of
    each of FORMULAS and at the best one tried (`simulated`). `surely`: lower 95% bound of the
    paired excess of Daly's overhead over the best; may be negative.
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


def search(
    spec: JobCosts,
    failures: FailureProcess,
    events: int,
    repetitions: int,
    rng: np.random.Generator,
) -> Optimum | None:
    """The best interval of `spec` (its own is ignored); None if a job with one of the intervals
    does not end.
    """
    mtbf, cost = failures.mtbf, spec.checkpoint
    named = {
        "young": young(cost, mtbf),
        "daly_first": daly_first(cost, mtbf, spec.restart),
        "daly": daly(cost, mtbf),
        "exact": exact_interval(cost, mtbf),
    }
    grid = np.geomspace(named["daly"] / FACTOR, named["daly"] * FACTOR, POINTS)
    work = max(events * mtbf, LEAST_INTERVALS * float(grid[-1]))
    walls = (
        sweep(
            replace(spec, interval=math.inf),
            (*grid, *named.values()),
            work,
            failures,
            rng,
            repetitions,
        ).wall
        / work
        - 1
    )
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
    """Minimum of a parabola over log interval through the points within a factor of two of the
    best.
    """
    near = np.abs(np.log(grid / grid[best])) <= math.log(2) + 1e-9
    x = np.log(grid[near] / grid[best])
    bend, slope, _ = np.polyfit(x, overheads[near], 2)
    if bend <= 0:
        return float(grid[best])
    return float(
        grid[best] * math.exp(min(max(-slope / (2 * bend), float(x.min())), float(x.max())))
    )


def _alike(grid: Floats, curve: Floats, best: int) -> tuple[float, float]:
    """The shortest and the longest interval whose paired difference to the best one tried includes
    zero.
    """
    apart = curve - curve[best]
    kept = grid[apart.mean(axis=1) - halves(apart) <= 0]
    return float(kept.min()), float(kept.max())


HOPELESS = 20  # times the work; longer jobs are not simulated
# Compared repetition by repetition under the same failures.
PAIRS = (
    ("immediate_rollback", "checkpoint_restart"),
    ("immediate_rollback, spares", "checkpoint_restart, spares"),
    ("in_memory, spares", "checkpoint_restart, spares"),
    ("lossy_forward", "immediate_rollback"),
    ("lossy_forward", "immediate_rollback, spares"),
    ("lossy_forward", "skip"),
)
Facts = dict[str, Any]


@dataclass(frozen=True)
class Experiments:
    """State that all trials share."""

    config: RecoveryOverhead

    def scenario(self, workers: int) -> FailureScenario:
        config = self.config
        return FailureScenario(workers, config.casualties, config.replace_s, config.spare_share)

    def run(self, facts: Facts, rng: np.random.Generator) -> dict[str, Any]:
        return {
            "check": self.check,
            "optimum": self.optimum,
            "scale": self.scale,
            "two minutes": self.published_interval,
            "recorded": self.recorded,
        }[facts["kind"]](facts, rng)

    def check(self, facts: Facts, rng: np.random.Generator) -> dict[str, Any]:
        return asdict(closed_forms.check(facts["case"], rng))

    def optimum(self, facts: Facts, rng: np.random.Generator) -> dict[str, Any]:
        """The best interval of checkpoint_restart."""
        parts = parts_of(facts)
        restart = waiting(checkpoint_restart(parts, self.scenario(facts["workers"]), Loss(0.0)))
        failures = FailureProcess(facts["mtbf"], facts["shape"])
        made = JobCosts(checkpoint=parts.checkpoint, restart=restart)
        found = search(made, failures, self.config.failures, self.config.repetitions, rng)
        return {"optimum": None if found is None else asdict(found)}

    def scale(self, facts: Facts, rng: np.random.Generator) -> dict[str, Any]:
        """Every strategy in one cell under the same failures."""
        seed = int(rng.integers(2**63))
        parts, scenario, mtbf = parts_of(facts), self.scenario(facts["workers"]), facts["mtbf"]
        rows, pairs = [], []
        walls = dict[str, Floats]()
        for percent in self.config.fatal_percent:
            for strategy in STRATEGIES:
                if strategy.rolls_back and strategy.name in walls:
                    continue  # every failure is fatal here anyway
                row, walls[strategy.name] = self._job(
                    job_spec(strategy, parts, scenario, mtbf, percent / 100), mtbf, seed
                )
                every = None if strategy.rolls_back else percent
                rows.append(
                    {
                        "strategy": strategy.name,
                        "fatal_percent": every,
                        **row,
                        "samples": strategy.samples(scenario.gone),
                    }
                )
            pairs += [
                {"fatal_percent": percent, **paired}
                for a, b in PAIRS
                if (paired := _paired(a, b, walls)) is not None
            ]
        return {"rows": rows, "pairs": pairs}

    def _job(self, made: JobCosts, mtbf: float, seed: int) -> tuple[dict[str, Any], Floats]:
        """Simulate a job; overheads are shares of the work."""
        work = self.work(mtbf, 0.0 if math.isinf(made.interval) else made.interval)
        expected = expected_wall(made, work, mtbf) / work - 1
        row: dict[str, Any] = {
            "interval": None if math.isinf(made.interval) else made.interval,
            "exact": exact(made),
        }
        if expected > HOPELESS:
            return row | {"expected": None, "mean": None, "low": None, "high": None}, np.empty(0)
        found = (
            simulate(
                made,
                work,
                FailureProcess(mtbf),
                np.random.default_rng(seed),
                self.config.repetitions,
            ).wall[0]
            / work
            - 1
        )
        if not np.isfinite(found).all():
            return row | {"expected": expected, "mean": None, "low": None, "high": None}, np.empty(
                0
            )
        return row | {"expected": expected, **told(found)._asdict()}, found

    def work(self, mtbf: float, interval: float) -> float:
        """Seconds of work: `failures` MTBFs, at least ten intervals."""
        return max(self.config.failures * mtbf, 10 * interval)

    def published_interval(self, facts: Facts, rng: np.random.Generator) -> dict[str, Any]:
        """Efficiency of a checkpoint every two minutes at the trial's MTBF."""
        made = JobCosts(closed_forms.INTERVAL, facts["checkpoint"], facts["restart"])
        work = self.work(facts["mtbf"], closed_forms.INTERVAL)
        n = self.config.repetitions
        walls = simulate(made, work, FailureProcess(facts["mtbf"]), rng, n).wall[0]
        said = closed_forms.agreement(walls / work, expected_wall(made, work, facts["mtbf"]) / work)
        return {**inverse(told(walls / work))._asdict(), **asdict(said)}

    def recorded(self, facts: Facts, rng: np.random.Generator) -> dict[str, Any]:
        """The model's prediction for a recorded failure without a wait for a replacement. In the
        record the interrupted step is part of the detection time.
        """
        failure = Failure(**{f.name: facts[f.name] for f in fields(Failure)})
        costs = checkpoint_restart(
            parts_of(facts["others"]), FailureScenario(facts["workers"]), Loss(failure.since, 0.0)
        )
        return {"predicted": costs, "total": math.fsum(costs.values()), "measured": failure.total}


def parts_of(facts: Facts) -> Parts:
    return Parts(**{f.name: facts[f.name] for f in fields(Parts)})


def _paired(a: str, b: str, walls: dict[str, Floats]) -> dict[str, Any] | None:
    """Overhead of `a` minus that of `b`; None if one of them does not end."""
    if not len(walls[a]) or not len(walls[b]):
        return None
    return {"a": a, "b": b, **told(walls[a] - walls[b])._asdict()}


assert all(name in BY_NAME for pair in PAIRS for name in pair)
