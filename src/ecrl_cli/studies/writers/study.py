"""Two writers, clocks and readers: one owner at a time, whoever is late is told so, and no clock decides."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from typing import Any

from ecrl_cli.config.schema import LAYOUTS
from ecrl_cli.config.studies import Writers
from ecrl_cli.studies.frame.result import Findings
from ecrl_cli.studies.frame.study import PreparedStudy, Record, Skip, StudyContext, Trial
from ecrl_cli.studies.mutants import writers
from ecrl_cli.studies.writers import clock_lint, clocks, fencing, flaky_nfs, readers
from ecrl_cli.studies.writers.findings import findings
from ecrl_cli.studies.writers.races import Races, stale_of
from ecrl_cli.studies.writers.store_fixture import History


def make(setting: StudyContext) -> PreparedStudy:
    return WritersStudy(setting)


class WritersStudy:
    def __init__(self, setting: StudyContext) -> None:
        self._setting, self._config, self._seed = setting, setting.config.study, setting.config.seed
        assert isinstance(self._config, Writers)
        self._history = History(setting.scratch / "history", self._seed)
        self._races = Races(setting.scratch)
        self._folder = setting.scratch / "trial"
        self._honest: dict[str, dict[str, Any]] = {}
        self._planned: list[Trial] = []

    def plan(self) -> list[Trial]:
        if not self._planned:
            self._planned = self._plan()
        return self._planned

    def skips(self) -> Sequence[Skip]:
        return ()

    def run(self, trial: Trial) -> dict[str, Any]:
        return self._arms[trial.facts["arm"]](trial)

    def findings(self, records: Sequence[Record]) -> Findings:
        return findings(records)

    def close(self) -> None:
        self._races.close()
        shutil.rmtree(self._setting.scratch / "history", ignore_errors=True)

    def _plan(self) -> list[Trial]:
        config, scratch, history, seed = self._config, self._setting.scratch, self._history, self._seed
        trials = [Trial(f"race/{number:03d}", {"arm": "race", "number": number, "left": stale_of(number)}) for number in range(config.races)]
        trials += fencing.trials(history, seed, scratch, config.every)
        for number in range(config.lies):
            jump, layout = clocks.JUMPS[number % len(clocks.JUMPS)], LAYOUTS[number // len(clocks.JUMPS) % len(LAYOUTS)]
            trials.append(Trial(f"clock/{number:03d}", {"arm": "clock", "jump": jump, "layout": layout}))
        trials += flaky_nfs.trials(history, seed, scratch) + readers.trials(history, seed, scratch, config.saves)
        trials += [Trial(f"source/{module}", {"arm": "source", "module": module}) for module in clock_lint.DECIDES]
        bugs = writers.PLANTED if config.planted else ()
        return trials + [Trial(f"planted/{bug.name}", {"arm": "planted", "bug": bug.name}) for bug in bugs]

    @property
    def _arms(self) -> dict[str, Callable[[Trial], dict[str, Any]]]:
        return {
            "race": lambda trial: self._races.run(trial.facts["number"]),
            "fence": lambda trial: fencing.run(self._history, self._seed, self._folder, trial.facts),
            "publish": lambda trial: fencing.run(self._history, self._seed, self._folder, trial.facts),
            "clock": self._clock,
            "remote": lambda trial: flaky_nfs.run(self._history, self._seed, self._folder, trial.facts),
            "reader": lambda trial: readers.run(self._history, self._seed, self._folder, trial.facts),
            "source": lambda trial: {"offences": clock_lint.offences(clock_lint.source_of(trial.facts["module"]))},
            "planted": lambda trial: writers.run(trial.facts["bug"], self._history, self._seed, self._folder),
        }

    def _clock(self, trial: Trial) -> dict[str, Any]:
        layout = trial.facts["layout"]
        if layout not in self._honest:
            self._honest[layout] = self._story(trial, "")
        told = self._story(trial, trial.facts["jump"])
        return {"differs": sorted(key for key, value in told.items() if value != self._honest[layout][key])}

    def _story(self, trial: Trial, jump: str) -> dict[str, Any]:
        try:
            return clocks.story(self._folder, self._seed, trial.facts["layout"], jump, self._setting.rng(trial.key))
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
