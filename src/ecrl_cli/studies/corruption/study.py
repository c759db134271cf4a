"""`corruption`: committed checkpoints damaged in every way, and what the guard says. Published Table 3 and Figure 5, and beyond."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ecrl_cli.config.studies import Corruption
from ecrl_cli.studies.corruption import clean, published, random_faults, recovery, stock_loaders, structural
from ecrl_cli.studies.corruption.exhaustive import ARM as EXHAUSTIVE
from ecrl_cli.studies.corruption.exhaustive import Exhaustive
from ecrl_cli.studies.corruption.findings import findings
from ecrl_cli.studies.frame.result import Findings
from ecrl_cli.studies.frame.study import PreparedStudy, Record, Skip, StudyContext, Trial
from ecrl_cli.studies.mutants import repair

_ARMS = {arm.ARM: arm for arm in (published, random_faults, structural, recovery, clean, stock_loaders, repair)}


def make(setting: StudyContext) -> PreparedStudy:
    return _Corruption(setting)


class _Corruption:
    def __init__(self, setting: StudyContext) -> None:
        self._setting = setting
        self._config: Corruption = setting.config.study
        self._exhaustive = Exhaustive(setting)

    def plan(self) -> list[Trial]:
        """Arm by arm; the long trials last would leave a core idle, so the short ones are."""
        first = self._exhaustive.trials() if EXHAUSTIVE in self._config.arms else []
        if self._config.planted:
            first = [*repair.trials(self._setting), *first]
        return [*first, *(trial for arm in self._arms for trial in _ARMS[arm].trials(self._setting))]

    def skips(self) -> list[Skip]:
        found = structural.skips(self._setting) if structural.ARM in self._arms else []
        return found + (clean.skips() if clean.ARM in self._arms else [])

    def run(self, trial: Trial) -> dict[str, Any]:
        arm = str(trial.facts["arm"])
        return self._exhaustive.run(trial) if arm == EXHAUSTIVE else _ARMS[arm].run(self._setting, trial)

    def findings(self, records: Sequence[Record]) -> Findings:
        return findings(records)

    def close(self) -> None:
        """Nothing is kept between trials."""

    @property
    def _arms(self) -> list[str]:
        return [arm for arm in self._config.arms if arm != EXHAUSTIVE]
