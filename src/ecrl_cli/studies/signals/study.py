"""What asks a run to stop, in every phase: the step being done is finished by all, saved, durable; the run resumes from it.

A trial sends the signal when rank 0 says that it is in the phase; then the same run is started again and must complete. What comes at once is one
request; a second one, sent while the ranks make the last checkpoint of the first, ends the run without it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ecrl_cli.config.schema import RunConfig
from ecrl_cli.config.studies import Signals
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.studies.fake_ranks.script import FakeRankScript
from ecrl_cli.studies.fake_ranks.supervisor_harness import (
    TRIAL_S,
    Stage,
    SupervisorOutcome,
    Trigger,
    TriggeringUI,
    heard_by_nobody_else,
    lineage_whole,
    settings,
    steps,
    whole,
)
from ecrl_cli.studies.frame.result import Findings
from ecrl_cli.studies.frame.study import PreparedStudy, Record, Skip, StudyContext, Trial
from ecrl_cli.studies.signals.findings import findings
from ecrl_cli.supervision.attempts.stop_signals import ECHO_S

STEPS, EVERY, MOMENT_S = 40, 15, 0.02
TERM, INT, HUP = "SIGTERM", "SIGINT", "SIGHUP"
CODES = {TERM: 143, INT: 130, HUP: 143}
# By phase: in which attempt, and from which step on; before the first step there is nothing to be saved.
PHASES: dict[str, Trigger] = {
    "importing": Trigger("importing"),
    "rendezvous": Trigger("rendezvous"),
    "loading": Trigger("loading"),
    "first step": Trigger("forward"),
    "training": Trigger("training"),
    "saving": Trigger("saving"),
    "recovery": Trigger("loading", attempt=1),
    "replay": Trigger("forward", attempt=1),
}
EARLY = ("importing", "rendezvous", "loading", "recovery")
STORM = (TERM, INT, TERM, HUP, INT, TERM)
# By word: each request, as the signals that it is made of.
WORDS: dict[str, tuple[tuple[str, ...], ...]] = {
    TERM: ((TERM,),),
    INT: ((INT,),),
    HUP: ((HUP,),),
    "SIGINT twice": ((INT,), (INT,)),
    "a storm": (STORM,),
}
AGAIN_S = 1.25 * ECHO_S  # between two requests
LAST_SAVE_S = 4 * AGAIN_S  # where there are two: the second comes in the middle of it
USUAL = settings(STEPS, every=EVERY, grace_s=2 * LAST_SAVE_S, start_timeout_s=2 * LAST_SAVE_S)
LITTLE = settings(STEPS, every=STEPS, grace_s=0.5)  # where no save is due, none but the stop's own can keep the last step
PLANT_CUE = Trigger("training", 10)
# What is on record of a trial that the study had to end.
OVERDUE: dict[str, Any] = {"good": False, "shown": False, "graceful": False, "kept": False, "code": 0, "seconds": TRIAL_S}
DEAF_PLANT, ALONE_PLANT = "ranks that ignore the word", "rank 0 stops without asking"


def make(setting: StudyContext) -> PreparedStudy:
    return SignalsStudy(setting)


class SignalsStudy:
    def __init__(self, setting: StudyContext) -> None:
        self._setting, self._config = setting, setting.config.study
        assert isinstance(self._config, Signals)
        self._stage = Stage(setting.scratch)

    def plan(self) -> list[Trial]:
        trials = [
            Trial(f"{word}/{phase}/{n:03d}", {"arm": "case", "word": word, "phase": phase})
            for n in range(self._config.each)
            for word in WORDS
            for phase in PHASES
        ]
        if not self._config.planted:
            return trials
        planted = [Trial(f"planted/{bug}", {"arm": "planted", "what": bug}) for bug in (DEAF_PLANT, ALONE_PLANT)]
        return [*trials, Trial("control/little grace", {"arm": "control"}), *planted]

    def skips(self) -> Sequence[Skip]:
        return ()

    def run(self, trial: Trial) -> dict[str, Any]:
        arms = {"case": self._case, "control": self._control, "planted": self._planted}
        return self._stage.tried(arms[trial.facts["arm"]], trial, OVERDUE)

    def _planted(self, trial: Trial) -> dict[str, Any]:
        heeds = "no" if trial.facts["what"] == DEAF_PLANT else "alone"
        return {"shown": not self._try(TERM, PLANT_CUE, FakeRankScript(heeds=heeds), LITTLE, graceful=True)["good"]}

    def _control(self, trial: Trial) -> dict[str, Any]:
        """What is planted is not found because of the little grace that it has."""
        return self._try(TERM, PLANT_CUE, FakeRankScript(), LITTLE, graceful=True)

    def _case(self, trial: Trial) -> dict[str, Any]:
        phase = trial.facts["phase"]
        cue = PHASES[phase]
        if phase == "training":
            cue = Trigger("training", self._setting.rng(trial.key).randrange(2, STEPS - 5))
        word, last = trial.facts["word"], LAST_SAVE_S if len(WORDS[trial.facts["word"]]) > 1 else MOMENT_S
        part = FakeRankScript(start_s=MOMENT_S, save_s=MOMENT_S, last_save_s=last, deeds={"0/1/20": "exit1"} if cue.attempt else {})
        return self._try(word, cue, part, USUAL, graceful=phase not in EARLY)

    def findings(self, records: Sequence[Record]) -> Findings:
        return findings(records)

    def close(self) -> None:
        self._stage.close()

    def _try(self, word: str, cue: Trigger, part: FakeRankScript, config: RunConfig, *, graceful: bool) -> dict[str, Any]:
        with self._stage.run(config, part) as layout:
            with asking(WORDS[word]) as asked:
                stopped = self._stage.supervise(config, layout, TriggeringUI(cue, asked.again))
            found = _judge(layout, stopped, asked, graceful=graceful)
            return found | self._resume(config, layout, found)

    def _resume(self, config: RunConfig, layout: RunLayout, found: dict[str, Any]) -> dict[str, Any]:
        ending = self._stage.supervise(config, layout, TriggeringUI())
        resumed = ending.attempts[-1]["outcome"] == "completed" and lineage_whole(layout) and ending.left == 0
        return {"resumed": resumed, "good": found["good"] and resumed}


class Asked:
    """The requests of a word, one after the other. `times`: how many have been sent."""

    def __init__(self, requests: tuple[tuple[str, ...], ...]) -> None:
        self.requests, self.times = requests, 0
        self._later: threading.Timer | None = None

    def again(self) -> None:
        """Send the next one now, and those that follow AGAIN_S apart."""
        names = self.requests[self.times]
        self.times += 1
        for name in names:
            os.kill(os.getpid(), signal.Signals[name])
        if self.times < len(self.requests):
            self._later = threading.Timer(AGAIN_S, self.again)
            self._later.start()

    def close(self) -> None:
        if self._later:
            self._later.cancel()
            self._later.join()


@contextmanager
def asking(requests: tuple[tuple[str, ...], ...]) -> Iterator[Asked]:
    """Nobody but a run in here hears them."""
    asked = Asked(requests)
    with heard_by_nobody_else():
        try:
            yield asked
        finally:
            asked.close()


def acknowledged(done: int) -> int:
    """The step of the newest checkpoint that was acknowledged before rank 0 could do step `done`; 0: none."""
    return max(0, done - 1) // EVERY * EVERY


def _judge(layout: RunLayout, ending: SupervisorOutcome, asked: Asked, *, graceful: bool) -> dict[str, Any]:
    """`durable`: the newest whole checkpoint; `done`: the last step that any attempt's rank 0 logged; `last`: the last attempt's; `seconds`: since
    the last request. Once asked, and past the start, a run keeps the last step done; asked again, or before, it ends at once."""
    durable, attempt = max(whole(layout), default=0), ending.attempts[-1]
    done = max((step for number in layout.attempts() for step in steps(layout, number, 0)), default=0)
    same = len({len(steps(layout, attempt["attempt"], rank)) for rank in (0, 1)}) == 1
    due = len(asked.requests) if graceful else 1
    seconds, once = ending.after_s - (asked.times - 1) * AGAIN_S, graceful and due == 1
    code = ending.code in {CODES[name] for names in asked.requests for name in names}
    kept = durable == attempt["last_step"] if once else durable >= acknowledged(done)
    said = f"step {durable} is durable" in ending.said if durable else "nothing was saved" in ending.said
    in_time = asked.times >= due and (once or seconds < LAST_SAVE_S - AGAIN_S)
    good = code and kept and said and in_time and ending.left == 0 and attempt["outcome"] == "stopped" and (same or not once)
    return {
        "code": ending.code,
        "asked": asked.times,
        "durable": durable,
        "done": done,
        "last": attempt["last_step"],
        "graceful": once,
        "kept": durable == attempt["last_step"],
        "seconds": seconds,
        "left": ending.left,
        "said": ending.said,
        "good": good,
    }
