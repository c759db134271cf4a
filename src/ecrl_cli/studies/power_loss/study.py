"""Power loss: the model and, where it is asked for and the machine can, real file systems. Each arm plans, runs and judges its own trials."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from ecrl_cli.metrics.gates import Gate
from ecrl_cli.studies.frame.result import Findings
from ecrl_cli.studies.frame.study import PreparedStudy, Record, Skip, StudyContext, Trial
from ecrl_cli.studies.power_loss.model_arm import ModelArm
from ecrl_cli.studies.power_loss.model_findings import model_classes

REAL = ("shutdown", "blocks")


def make(setting: StudyContext) -> PreparedStudy:
    arms: dict[str, PreparedStudy] = {}
    chosen = setting.config.study.arms
    if "model" in chosen:
        arms["model"] = ModelArm(setting)
    if any(arm in chosen for arm in REAL):
        from ecrl_cli.studies.power_loss.real_arms import make_real_arms

        arms |= dict.fromkeys(REAL, make_real_arms(setting))
    return PowerLossStudy(arms)


class PowerLossStudy:
    """`arms`: who answers for the trials whose key begins with that word. Two words may have the same one."""

    def __init__(self, arms: dict[str, PreparedStudy]) -> None:
        self._arms = arms
        self._each = list(dict.fromkeys(arms.values()))

    def plan(self) -> Sequence[Trial]:
        return [trial for arm in self._each for trial in arm.plan()]

    def skips(self) -> Sequence[Skip]:
        return [skip for arm in self._each for skip in arm.skips()]

    def run(self, trial: Trial) -> dict[str, Any]:
        return self._of(trial.key).run(trial)

    def findings(self, records: Sequence[Record]) -> Findings:
        parts = [arm.findings(mine) for arm in self._each if (mine := [record for record in records if self._of(record.key) is arm])]
        return Findings(
            tables=tuple(chain.from_iterable(part.tables for part in parts)),
            figures=tuple(chain.from_iterable(part.figures for part in parts)),
            gates=(*chain.from_iterable(part.gates for part in parts), *_compared(records)),
            notes=tuple(chain.from_iterable(part.notes for part in parts)),
        )

    def close(self) -> None:
        for arm in self._each:
            arm.close()

    def _of(self, key: str) -> PreparedStudy:
        return self._arms[key.partition("/")[0]]


def _compared(records: Sequence[Record]) -> tuple[Gate, ...]:
    """The model must not be kinder than the file systems, where both have run."""
    real = [record for record in records if record.key.partition("/")[0] in REAL]
    classes = model_classes(records)
    if not real or not classes:
        return ()
    from ecrl_cli.studies.power_loss.real_arms import not_kinder

    return (not_kinder(classes, real),)
