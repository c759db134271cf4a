"""Runs the trials: each maps its facts and its random generator to numbers and keeps nothing in memory."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from ecrl_cli.config.studies import RecoveryOverhead
from ecrl_cli.replication.overhead import checks
from ecrl_cli.replication.overhead import published_claim as two_minutes
from ecrl_cli.replication.overhead.closed_forms import exact, expected_wall
from ecrl_cli.replication.overhead.job_model import JobSpec
from ecrl_cli.replication.overhead.measured import Failure
from ecrl_cli.replication.overhead.optimum import search
from ecrl_cli.replication.overhead.parts import Parts
from ecrl_cli.replication.overhead.simulate import Failures, Floats, simulate
from ecrl_cli.replication.overhead.spread import inverse, told
from ecrl_cli.replication.overhead.strategies import BY_NAME, STRATEGIES, Loss, Scene, checkpoint_restart, course, waiting

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
    """What all trials share."""

    config: RecoveryOverhead

    def scene(self, workers: int) -> Scene:
        config = self.config
        return Scene(workers, config.casualties, config.replace_s, config.spare_share)

    def run(self, facts: Facts, rng: np.random.Generator) -> dict[str, Any]:
        return {
            "check": self.check,
            "optimum": self.optimum,
            "scale": self.scale,
            "two minutes": self.two_minutes,
            "recorded": self.recorded,
        }[facts["kind"]](facts, rng)

    def check(self, facts: Facts, rng: np.random.Generator) -> dict[str, Any]:
        return asdict(checks.check(facts["case"], rng))

    def optimum(self, facts: Facts, rng: np.random.Generator) -> dict[str, Any]:
        """The best interval of checkpoint_restart."""
        parts = parts_of(facts)
        restart = waiting(checkpoint_restart(parts, self.scene(facts["workers"]), Loss(0.0)))
        failures = Failures(facts["mtbf"], facts["shape"])
        made = JobSpec(checkpoint=parts.checkpoint, restart=restart)
        found = search(made, failures, self.config.failures, self.config.repetitions, rng)
        return {"optimum": None if found is None else asdict(found)}

    def scale(self, facts: Facts, rng: np.random.Generator) -> dict[str, Any]:
        """Every strategy in one cell under the same failures."""
        seed = int(rng.integers(2**63))
        parts, scene, mtbf = parts_of(facts), self.scene(facts["workers"]), facts["mtbf"]
        rows, pairs = [], []
        walls = dict[str, Floats]()
        for percent in self.config.fatal_percent:
            for strategy in STRATEGIES:
                if strategy.rolls_back and strategy.name in walls:
                    continue  # every failure is fatal here anyway
                row, walls[strategy.name] = self._job(course(strategy, parts, scene, mtbf, percent / 100), mtbf, seed)
                every = None if strategy.rolls_back else percent
                rows.append({"strategy": strategy.name, "fatal_percent": every, **row, "samples": strategy.samples(scene.gone)})
            pairs += [{"fatal_percent": percent, **paired} for a, b in PAIRS if (paired := _paired(a, b, walls)) is not None]
        return {"rows": rows, "pairs": pairs}

    def _job(self, made: JobSpec, mtbf: float, seed: int) -> tuple[dict[str, Any], Floats]:
        """Simulate a job; overheads are shares of the work."""
        work = self.work(mtbf, 0.0 if math.isinf(made.interval) else made.interval)
        expected = expected_wall(made, work, mtbf) / work - 1
        row: dict[str, Any] = {"interval": None if math.isinf(made.interval) else made.interval, "exact": exact(made)}
        if expected > HOPELESS:
            return row | {"expected": None, "mean": None, "low": None, "high": None}, np.empty(0)
        found = simulate(made, work, Failures(mtbf), np.random.default_rng(seed), self.config.repetitions).wall[0] / work - 1
        if not np.isfinite(found).all():
            return row | {"expected": expected, "mean": None, "low": None, "high": None}, np.empty(0)
        return row | {"expected": expected, **told(found)._asdict()}, found

    def work(self, mtbf: float, interval: float) -> float:
        """Seconds of work: `failures` MTBFs, at least ten intervals."""
        return max(self.config.failures * mtbf, 10 * interval)

    def two_minutes(self, facts: Facts, rng: np.random.Generator) -> dict[str, Any]:
        """Efficiency of a checkpoint every two minutes at the trial's MTBF."""
        made = JobSpec(two_minutes.INTERVAL, facts["checkpoint"], facts["restart"])
        work = self.work(facts["mtbf"], two_minutes.INTERVAL)
        n = self.config.repetitions
        walls = simulate(made, work, Failures(facts["mtbf"]), rng, n).wall[0]
        said = checks.agreement(walls / work, expected_wall(made, work, facts["mtbf"]) / work)
        return {**inverse(told(walls / work))._asdict(), **asdict(said)}

    def recorded(self, facts: Facts, rng: np.random.Generator) -> dict[str, Any]:
        """The model's prediction for a recorded failure without a wait for a replacement. In the record the interrupted step is part of the
        detection time."""
        failure = Failure(**{f.name: facts[f.name] for f in fields(Failure)})
        costs = checkpoint_restart(parts_of(facts["others"]), Scene(facts["workers"]), Loss(failure.since, 0.0))
        return {"predicted": costs, "total": math.fsum(costs.values()), "measured": failure.total}


def parts_of(facts: Facts) -> Parts:
    return Parts(**{f.name: facts[f.name] for f in fields(Parts)})


def _paired(a: str, b: str, walls: dict[str, Floats]) -> dict[str, Any] | None:
    """Overhead of `a` minus that of `b`; None if one of them does not end."""
    if not len(walls[a]) or not len(walls[b]):
        return None
    return {"a": a, "b": b, **told(walls[a] - walls[b])._asdict()}


assert all(name in BY_NAME for pair in PAIRS for name in pair)
