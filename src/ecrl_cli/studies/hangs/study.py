"""Ranks, writer and launcher that stand still, die or wake up late: found, named, ended, followed by the next attempt, and nothing is left.

The supervisor, its launchers, the board and the store are the product's; the ranks are actors, so that a trial takes a second or two.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ecrl_cli.config.studies import Hangs
from ecrl_cli.studies.fake_ranks.script import FakeRankScript
from ecrl_cli.studies.fake_ranks.supervisor_harness import LIMIT_S, Stage, TriggeringUI, settings
from ecrl_cli.studies.frame.leak_check import shared_memory
from ecrl_cli.studies.frame.result import Findings
from ecrl_cli.studies.frame.study import PreparedStudy, Record, Skip, StudyContext, Trial
from ecrl_cli.studies.hangs import detector_scenarios
from ecrl_cli.studies.hangs.cases import CASES, STEPS
from ecrl_cli.studies.hangs.findings import findings

SIDE_THREAD = "a heartbeat from a side thread"
# What is on record of a trial that the study had to end.
OVERDUE: dict[str, Any] = {
    "good": False,
    "shown": False,
    "outcomes": ["not over"],
    "found_after": 0.0,
    "left": 0,
    "shared_memory": [],
}


def make(setting: StudyContext) -> PreparedStudy:
    return HangsStudy(setting)


class HangsStudy:
    def __init__(self, setting: StudyContext) -> None:
        self._setting, self._config = setting, setting.config.study
        assert isinstance(self._config, Hangs)
        self._stage = Stage(setting.scratch)

    def plan(self) -> list[Trial]:
        trials = [Trial(f"case/{case.what}/{n:03d}", {"arm": "case", "what": case.what}) for n in range(self._config.each) for case in CASES]
        for story in ("slow", "suspended", "standing"):
            trials += [Trial(f"story/{story}/{n:03d}", {"arm": "story", "what": story}) for n in range(self._config.slow)]
        bugs = (*(bug.name for bug in detector_scenarios.PLANTED), SIDE_THREAD) if self._config.planted else ()
        return trials + [Trial(f"planted/{bug}", {"arm": "planted", "what": bug}) for bug in bugs]

    def skips(self) -> Sequence[Skip]:
        return ()

    def run(self, trial: Trial) -> dict[str, Any]:
        arms: dict[str, Callable[[Trial], dict[str, Any]]] = {"case": self._case, "story": self._story, "planted": self._planted}
        return self._stage.tried(arms[trial.facts["arm"]], trial, OVERDUE)

    def findings(self, records: Sequence[Record]) -> Findings:
        return findings(records)

    def close(self) -> None:
        self._stage.close()

    def _case(self, trial: Trial) -> dict[str, Any]:
        case = next(case for case in CASES if case.what == trial.facts["what"])
        before = shared_memory()
        found = case.run(self._stage, self._setting.rng(trial.key))
        return found | {"shared_memory": sorted(shared_memory() - before)}

    def _story(self, trial: Trial) -> dict[str, Any]:
        rng = self._setting.rng(trial.key)
        if trial.facts["what"] == "standing":
            found = detector_scenarios.standing(detector_scenarios.product, rng)
            return {"waited": found, "good": found is not None and found < 3}
        alarms = (detector_scenarios.slow if trial.facts["what"] == "slow" else detector_scenarios.suspended)(detector_scenarios.product, rng)
        return {"alarms": alarms, "good": alarms == 0}

    def _planted(self, trial: Trial) -> dict[str, Any]:
        if trial.facts["what"] == SIDE_THREAD:
            return {"shown": self._side_thread()}
        bug = next(bug for bug in detector_scenarios.PLANTED if bug.name == trial.facts["what"])
        return {"shown": bug.shown(self._setting.rng(trial.key))}

    def _side_thread(self) -> bool:
        """A rank that spins is not found while a thread of its beats."""
        config = settings(STEPS)
        with self._stage.run(config, FakeRankScript(deeds={"0/1/20": "spin"}, side_thread=True)) as layout, _given_up_after(5 * LIMIT_S):
            ending = self._stage.supervise(config, layout, TriggeringUI())
        return [attempt["outcome"] for attempt in ending.attempts] == ["stopped"]


@contextmanager
def _given_up_after(seconds: float) -> Iterator[None]:
    """Two Ctrl-C after that time, once."""

    def twice(number: int, frame: FrameType | None) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGALRM, twice)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
