"""`recovery-overhead`: what each recovery strategy costs, by the model that the published study promised: parts, and jobs at scale.

The arms: `check` (the simulation against closed forms, and with planted bugs), `optimum` (the best checkpoint interval, by formula and by search),
`scale` (every strategy over MTBF and number of workers), `two minutes` (the published sanity point), `recorded` (failures on record, predicted).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ecrl_cli.config.studies import RecoveryOverhead
from ecrl_cli.replication.overhead import published_claim
from ecrl_cli.replication.overhead.checks import CASES, PLANTED
from ecrl_cli.replication.overhead.experiments import Experiments
from ecrl_cli.replication.overhead.findings import findings
from ecrl_cli.replication.overhead.measured import Recording, measured_parts, parts_without, predictable, recordings
from ecrl_cli.replication.overhead.parts import PUBLISHED, Parts, typed, typed_alone
from ecrl_cli.replication.overhead.simulate import system_mtbf
from ecrl_cli.replication.overhead.strategies import Loss, checkpoint_restart, waiting
from ecrl_cli.studies.frame.result import Findings
from ecrl_cli.studies.frame.study import PreparedStudy, Record, Skip, StudyContext, Trial


def make(setting: StudyContext) -> PreparedStudy:
    return _RecoveryOverhead(setting)


class _RecoveryOverhead:
    def __init__(self, setting: StudyContext) -> None:
        self._setting = setting
        self._config: RecoveryOverhead = setting.config.study
        self._laboratory = Experiments(self._config)

    @cached_property
    def recordings(self) -> list[Recording]:
        """Read by the process that plans, and by no worker: what a trial needs stands in its facts."""
        return [] if self._config.source in ("published", "typed") else recordings(Path(self._config.source).expanduser())

    @cached_property
    def models(self) -> dict[str, Parts]:
        """The parts by the name of what they were measured on."""
        if self._config.source == "published":
            return {name: typed(self._config, parts) for name, parts in PUBLISHED.items()}
        if self._config.source == "typed":
            return {"typed": typed_alone(self._config)}
        return {"measured": typed(self._config, measured_parts(self.recordings))}

    def plan(self) -> list[Trial]:
        return [*self._checks(), *self._recorded(), *self._two_minutes(), *self._optima(), *self._scale()]

    def skips(self) -> list[Skip]:
        if not self.recordings or predictable(self.recordings):
            return []
        return [Skip("prediction", "one failure is on record, and no other to predict it from: name a folder of runs with more")]

    def run(self, trial: Trial) -> dict[str, Any]:
        rng = np.random.default_rng(self._setting.rng(trial.key).getrandbits(128))
        return self._laboratory.run(trial.facts, rng)

    def findings(self, records: Sequence[Record]) -> Findings:
        return findings(self._config, self.models, self.recordings, records)

    def close(self) -> None:
        """Nothing is open."""

    def _checks(self) -> Iterator[Trial]:
        for name in (*CASES, *(PLANTED if self._config.planted else ())):
            yield Trial(f"check/{name}", {"kind": "check", "case": name})

    def _recorded(self) -> Iterator[Trial]:
        for recording in self.recordings:
            for failure in recording.failures:
                parts, others = parts_without(self.recordings, recording, failure)
                facts = {"run": recording.name, "strategy": recording.strategy, "workers": recording.workers, **asdict(failure)}
                yield Trial(f"recorded/{recording.name}/{failure.attempt}", {"kind": "recorded", **facts, "from": others, "others": asdict(parts)})

    def _two_minutes(self) -> Iterator[Trial]:
        for name, (checkpoint, restart) in self.assumptions().items():
            needed = published_claim.needed(checkpoint, restart)
            mtbfs = {"published": system_mtbf(published_claim.WORKER_MTBF, published_claim.WORKERS), **({"needed": needed} if needed else {})}
            for at, mtbf in mtbfs.items():
                facts = {"assumption": name, "checkpoint": checkpoint, "restart": restart, "at": at, "mtbf": mtbf}
                yield Trial(f"two minutes/{name}/{at}", {"kind": "two minutes", **facts})

    def assumptions(self) -> dict[str, tuple[float, float]]:
        """Seconds of a checkpoint and of a restart under which the sentence is looked at."""
        scene = self._laboratory.scene(published_claim.WORKERS)
        found = {name: (p.checkpoint, waiting(checkpoint_restart(p, scene, Loss(0.0)))) for name, p in self.models.items()}
        return {"both cost nothing": (0.0, 0.0), "5 s and 30 s": (5.0, 30.0), **found}

    def _cells(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Every model, MTBF and size: the parts, the MTBF of a system of that size."""
        for model, parts in self.models.items():
            for minutes in self._config.mtbf_min:
                for workers in self._config.workers:
                    mtbf = self._mtbf(60.0 * minutes, workers)
                    yield f"{model}/{minutes}/{workers}", {"model": model, "minutes": minutes, "workers": workers, "mtbf": mtbf, **asdict(parts)}

    def _mtbf(self, quoted: float, workers: int) -> float:
        reference = self._config.reference_workers
        return system_mtbf(quoted * reference, workers) if reference else quoted

    def _optima(self) -> Iterator[Trial]:
        for name, facts in self._cells():
            yield Trial(f"optimum/{name}", {"kind": "optimum", **facts, "shape": 1.0})
            if facts["workers"] == max(self._config.workers) and self._config.weibull_shape != 1.0:
                yield Trial(f"optimum/{name}/weibull", {"kind": "optimum", **facts, "shape": self._config.weibull_shape})

    def _scale(self) -> Iterator[Trial]:
        for name, facts in self._cells():
            yield Trial(f"scale/{name}", {"kind": "scale", **facts})
