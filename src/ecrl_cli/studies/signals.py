"""Stop requests in every phase: all ranks finish the current step, it is saved durably, and the run
resumes from it.

A trial sends the signal when rank 0 reports the phase; then the same run is started again and must
complete. Signals in quick succession are one request; a second request, sent during the last
checkpoint of the first, ends the run without it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from ecrl_cli.config.schema import RunConfig
from ecrl_cli.config.studies import Signals
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.studies.fake_ranks.fake_rank import FakeRankScript
from ecrl_cli.studies.fake_ranks.supervisor_harness import (
    TRIAL_S,
    SupervisorHarness,
    SupervisorOutcome,
    Trigger,
    TriggeringUI,
    harness_of,
    lineage_whole,
    settings,
    steps,
    stop_signals_ignored,
    whole,
)
from ecrl_cli.studies.frame.gates import OVER, all_good, all_of, by_design, mutants_found
from ecrl_cli.studies.frame.study import (
    Arm,
    Record,
    Study,
    StudyContext,
    Trial,
    TrialResults,
    planted,
)
from ecrl_cli.studies.frame.tables import (
    TableSpec,
    cell,
    count,
    fact,
    most,
    mutants_table,
    size,
    yes,
)
from ecrl_cli.supervision.attempts.stop_signals import ECHO_S

STEPS, EVERY, MOMENT_S = 40, 15, 0.02
# share of the trials with one signal between first and last step: the last step done is durable
TARGET = 0.95
TERM, INT, HUP = "SIGTERM", "SIGINT", "SIGHUP"
CODES = {TERM: 143, INT: 130, HUP: 143}
# By phase: the attempt, and the first step; before the first step there is nothing to save.
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
# By name: each request as its signals.
WORDS: dict[str, tuple[tuple[str, ...], ...]] = {
    TERM: ((TERM,),),
    INT: ((INT,),),
    HUP: ((HUP,),),
    "SIGINT twice": ((INT,), (INT,)),
    "a storm": (STORM,),
}
AGAIN_S = 1.25 * ECHO_S  # between two requests
LAST_SAVE_S = 4 * AGAIN_S  # with two requests: the second arrives during it
USUAL = settings(STEPS, every=EVERY, grace_s=2 * LAST_SAVE_S, start_timeout_s=2 * LAST_SAVE_S)
# no regular save is due there, so only the stop's own save can keep the last step
LITTLE = settings(STEPS, every=STEPS, grace_s=0.5)
MUTANT_TRIGGER = Trigger("training", 10)
# The record of a trial that timed out.
OVERDUE: dict[str, Any] = {
    "good": False,
    "shown": False,
    "graceful": False,
    "kept": False,
    "code": 0,
    "seconds": TRIAL_S,
}
DEAF_MUTANT, ALONE_MUTANT = "ranks that ignore the word", "rank 0 stops without asking"


def _case_trials(context: StudyContext) -> list[Trial]:
    return [
        Trial(f"{word}/{phase}/{n:03d}", {"arm": "case", "word": word, "phase": phase})
        for n in range(context.keys.each)
        for word in WORDS
        for phase in PHASES
    ]


def _case(context: StudyContext, trial: Trial) -> dict[str, Any]:
    word, phase = trial.facts["word"], trial.facts["phase"]
    trigger = PHASES[phase]
    if phase == "training":
        trigger = Trigger("training", context.rng(trial.key).randrange(2, STEPS - 5))
    last = LAST_SAVE_S if len(WORDS[word]) > 1 else MOMENT_S
    script = FakeRankScript(
        start_s=MOMENT_S,
        save_s=MOMENT_S,
        last_save_s=last,
        faults={"0/1/20": "exit1"} if trigger.attempt else {},
    )
    return _try(
        context.shared(harness_of), word, trigger, script, USUAL, graceful=phase not in EARLY
    )


def _control(context: StudyContext, trial: Trial) -> dict[str, Any]:
    """Control: the planted bug must not be found merely because of its short grace period."""
    return _try(
        context.shared(harness_of), TERM, MUTANT_TRIGGER, FakeRankScript(), LITTLE, graceful=True
    )


def _planted(context: StudyContext, trial: Trial) -> dict[str, Any]:
    on_stop = "no" if trial.facts["what"] == DEAF_MUTANT else "alone"
    return {
        "shown": not _try(
            context.shared(harness_of),
            TERM,
            MUTANT_TRIGGER,
            FakeRankScript(on_stop=on_stop),
            LITTLE,
            graceful=True,
        )["good"]
    }


def _try(
    harness: SupervisorHarness,
    word: str,
    trigger: Trigger,
    script: FakeRankScript,
    config: RunConfig,
    *,
    graceful: bool,
) -> dict[str, Any]:
    """Stop a run, judge how it stopped, and start it again."""
    with harness.run(config, script) as layout:
        with stop_requests(WORDS[word]) as request:
            stopped = harness.supervise(config, layout, TriggeringUI(trigger, request.again))
        found = _judge(layout, stopped, request, graceful=graceful)
        ending = harness.supervise(config, layout, TriggeringUI())
        resumed = (
            ending.attempts[-1]["outcome"] == "completed"
            and lineage_whole(layout)
            and ending.left == 0
        )
        return found | {"resumed": resumed, "good": found["good"] and resumed}


class StopRequests:
    """The requests of a name in sequence. `times`: how many were sent."""

    def __init__(self, requests: tuple[tuple[str, ...], ...]) -> None:
        self.requests, self.times = requests, 0
        self._later: threading.Timer | None = None

    def again(self) -> None:
        """Send the next request now, and the following ones AGAIN_S apart."""
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
def stop_requests(requests: tuple[tuple[str, ...], ...]) -> Iterator[StopRequests]:
    """Only the run inside the context receives the signals."""
    request = StopRequests(requests)
    with stop_signals_ignored():
        try:
            yield request
        finally:
            request.close()


def acknowledged(done: int) -> int:
    """The step of the newest checkpoint acknowledged before rank 0 could do step `done`; 0:
    none.
    """
    return max(0, done - 1) // EVERY * EVERY


def _judge(
    layout: RunLayout, ending: SupervisorOutcome, request: StopRequests, *, graceful: bool
) -> dict[str, Any]:
    """`durable`: the newest intact checkpoint; `done`: the last step logged by rank 0 in any
    attempt; `last`: in the last attempt; `seconds`: since the last request. After one request past
    the start a run must keep the last step done; after a second one, or before the first step, it
    ends at once.
    """
    durable, attempt = max(whole(layout), default=0), ending.attempts[-1]
    done = max(
        (step for number in layout.attempts() for step in steps(layout, number, 0)), default=0
    )
    same = len({len(steps(layout, attempt["attempt"], rank)) for rank in (0, 1)}) == 1
    due = len(request.requests) if graceful else 1
    seconds, once = ending.after_s - (request.times - 1) * AGAIN_S, graceful and due == 1
    code = ending.code in {CODES[name] for names in request.requests for name in names}
    kept = durable == attempt["last_step"] if once else durable >= acknowledged(done)
    said = (
        f"step {durable} is durable" in ending.said
        if durable
        else "nothing was saved" in ending.said
    )
    in_time = request.times >= due and (once or seconds < LAST_SAVE_S - AGAIN_S)
    good = (
        code
        and kept
        and said
        and in_time
        and ending.left == 0
        and attempt["outcome"] == "stopped"
        and (same or not once)
    )
    return {
        "code": ending.code,
        "asked": request.times,
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


def _good(record: Record) -> bool:
    return bool(record.found["good"])


def _kept(record: Record) -> bool:
    return bool(record.found["kept"])


def _gates(results: TrialResults) -> Iterator[Gate]:
    graceful = [record for record in results.of("case") if record.found["graceful"]]
    kept = sum(map(_kept, graceful))
    yield Gate(
        "durable",
        bool(graceful) and kept >= TARGET * len(graceful),
        f"{kept} of {len(graceful)} kept the last step done (target 95%)",
    )
    if results.keys.planted:
        what = "stops of honest ranks that have as little grace as the planted ones, as promised"
        yield all_good("control", results.of("control"), _good, what)


def _notes(results: TrialResults) -> tuple[str, ...]:
    return (
        by_design(results, "stops ended as promised"),
        (
            "Signals go to the supervisor. Ranks, agent, zygote and writer ignore SIGTERM, SIGINT"
            " and SIGHUP: sent to them alone, they do nothing."
        ),
        "Ranks are fakes without torch; what stops real training is in the tests.",
        "Not tried here: SIGUSR1, by which a cluster asks.",
    )


STUDY = Study(
    keys=Signals,
    description=(
        "What asks a run to stop, in every phase: the step being done is finished by all, saved,"
        " durable; the run resumes from it."
    ),
    arms=(
        Arm("case", _case_trials, _case, limit_s=TRIAL_S, overdue=OVERDUE),
        Arm(
            "control",
            lambda context: [Trial("control/little grace", {"arm": "control"})],
            _control,
            planted,
            limit_s=TRIAL_S,
            overdue=OVERDUE,
        ),
        Arm(
            "planted",
            lambda context: [
                Trial(f"planted/{bug}", {"arm": "planted", "what": bug})
                for bug in (DEAF_MUTANT, ALONE_MUTANT)
            ],
            _planted,
            planted,
            limit_s=TRIAL_S,
            overdue=OVERDUE,
        ),
    ),
    tables=(
        TableSpec(
            "words",
            "What asks a run to stop",
            ("case",),
            by=(fact("word", "signal"), fact("phase", "phase")),
            columns=(
                cell(
                    "codes",
                    "exit code",
                    "text",
                    lambda group: ", ".join(sorted({str(r.found["code"]) for r in group})),
                ),
                count("kept", "last step durable", _kept),
                count("good", "as promised", _good),
                size(),
            ),
            note=(
                "Before the first step, and when it is asked again, a run stops at once. A storm of"
                " signals at one moment is one request."
            ),
        ),
        TableSpec(
            "latency",
            "From the last request to the supervisor's end",
            ("case",),
            by=(fact("phase", "phase"),),
            columns=(
                cell(
                    "half",
                    "median",
                    "seconds",
                    lambda group: median(r.found["seconds"] for r in group),
                ),
                most("most", "longest", "seconds", of="seconds"),
                size(),
            ),
        ),
        mutants_table(
            (fact("what", "planted bug"), yes("shown", "found", lambda r: r.found["shown"]))
        ),
    ),
    gates=(
        OVER,
        all_of(
            "as_promised",
            "case",
            _good,
            "stops that ended as promised, and a run that completed when started again",
        ),
        _gates,
        mutants_found("what", "shown"),
    ),
    notes=_notes,
    alone=True,
)
