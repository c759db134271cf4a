"""Ranks, writer and launcher that hang, die or resume late: detected, named, killed, and followed
by the next attempt without leftovers.

Supervisor, launchers, heartbeat table and store are the product's; the ranks are fake, so a trial
takes a second or two.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ecrl_cli.config.studies import Hangs
from ecrl_cli.errors import plural
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.studies.fake_ranks.fake_rank import FakeRankScript
from ecrl_cli.studies.fake_ranks.supervisor_harness import (
    LIMIT_S,
    TRIAL_S,
    SupervisorHarness,
    Trigger,
    TriggeringUI,
    harness_of,
    settings,
)
from ecrl_cli.studies.frame.gates import OVER, all_of, by_design, mutants_found
from ecrl_cli.studies.frame.limits import shared_memory
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
    Group,
    TableSpec,
    cell,
    count,
    fact,
    most,
    mutants_table,
    size,
    yes,
)
from ecrl_cli.studies.hangs import detector_scenarios
from ecrl_cli.studies.hangs.cases import CASES, IN_LIMITS, STEPS

SIDE_THREAD = "a heartbeat from a side thread"
# The record of a trial that timed out.
OVERDUE: dict[str, Any] = {
    "good": False,
    "shown": False,
    "outcomes": ["not over"],
    "found_after": 0.0,
    "left": 0,
    "shared_memory": [],
}


def _named(arm: str, what: str, n: int) -> Trial:
    return Trial(f"{arm}/{what}/{n:03d}", {"arm": arm, "what": what})


def _case(context: StudyContext, trial: Trial) -> dict[str, Any]:
    case = next(case for case in CASES if case.what == trial.facts["what"])
    before = shared_memory()
    found = case.run(context.shared(harness_of), context.rng(trial.key))
    return found | {"shared_memory": sorted(shared_memory() - before)}


def _scenario(context: StudyContext, trial: Trial) -> dict[str, Any]:
    rng = context.rng(trial.key)
    if trial.facts["what"] == "standing":
        found = detector_scenarios.standing(detector_scenarios.product, rng)
        return {"waited": found, "good": found is not None and found < 3}
    alarms = (
        detector_scenarios.slow if trial.facts["what"] == "slow" else detector_scenarios.suspended
    )(detector_scenarios.product, rng)
    return {"alarms": alarms, "good": alarms == 0}


def _planted_trials(context: StudyContext) -> list[Trial]:
    bugs = (*(bug.name for bug in detector_scenarios.DETECTOR_MUTANTS), SIDE_THREAD)
    return [Trial(f"planted/{bug}", {"arm": "planted", "what": bug}) for bug in bugs]


def _planted(context: StudyContext, trial: Trial) -> dict[str, Any]:
    if trial.facts["what"] == SIDE_THREAD:
        return {"shown": _side_thread(context.shared(harness_of))}
    bug = next(
        bug for bug in detector_scenarios.DETECTOR_MUTANTS if bug.name == trial.facts["what"]
    )
    return {"shown": bug.shown(context.rng(trial.key))}


def _side_thread(harness: SupervisorHarness) -> bool:
    """Planted bug: a spinning rank is not detected while one of its threads sends heartbeats."""
    config, spun = settings(STEPS), 20
    script = FakeRankScript(faults={f"0/1/{spun}": "spin"}, side_thread=True)

    def wait() -> None:
        signal.setitimer(signal.ITIMER_REAL, 5 * LIMIT_S)

    ui = TriggeringUI(Trigger("training", spun - 1), wait)
    with harness.run(config, script) as layout, _alarm_stops():
        ending = harness.supervise(config, layout, ui)
    return [attempt["outcome"] for attempt in ending.attempts] == ["stopped"]


@contextmanager
def _alarm_stops() -> Iterator[None]:
    """SIGALRM sends two Ctrl-C to this process, which are for the supervisor: no timer may run
    before it handles them.
    """

    def twice(number: int, frame: FrameType | None) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGALRM, twice)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _good(record: Record) -> bool:
    return bool(record.found["good"])


def _ends(group: Group) -> str:
    return " / ".join(dict.fromkeys(", ".join(record.found["outcomes"]) for record in group))


def _in_time(results: TrialResults) -> Iterator[Gate]:
    hung = [record for record in results.of("case") if "hung" in record.found["outcomes"]]
    longest = max((record.found["found_after"] for record in hung), default=0.0)
    said = (
        f"{plural(len(hung), 'trial')} with a hang, ended at most {longest:.2f} times its limit"
        " after the last step"
    )
    yield Gate(
        "in_time",
        bool(hung) and longest < IN_LIMITS,
        f"{said}, by the ranks' own lines (target: below {IN_LIMITS:g})",
    )


def _notes(results: TrialResults) -> tuple[str, ...]:
    return (
        by_design(results, "trials ended as promised"),
        (
            "Ranks are fakes without torch that keep step through shared memory and save through"
            " the product's store; real training fails in the tests and by the failure group."
        ),
        (
            "An agent that is stopped once its ranks have met is not needed any more: the run"
            " completes without a restart."
        ),
        (
            "Not tried here: a process that SIGKILL does not end (it sits in the kernel), a"
            " partition between machines, a full disk, a run directory that is deleted, renamed or"
            " replaced meanwhile, no descriptor left, no memory left (ENOMEM)."
        ),
    )


STUDY = Study(
    keys=Hangs,
    description=(
        "Ranks, writer and launcher that stand still, die or wake up late: found, ended, followed"
        " by the next attempt, nothing left."
    ),
    arms=(
        Arm(
            "case",
            lambda context: [
                _named("case", case.what, n) for n in range(context.keys.each) for case in CASES
            ],
            _case,
            limit_s=TRIAL_S,
            overdue=OVERDUE,
        ),
        Arm(
            "story",
            lambda context: [
                _named("story", what, n)
                for what in ("slow", "suspended", "standing")
                for n in range(context.keys.slow)
            ],
            _scenario,
            limit_s=TRIAL_S,
            overdue=OVERDUE,
        ),
        Arm("planted", _planted_trials, _planted, planted, limit_s=TRIAL_S, overdue=OVERDUE),
    ),
    tables=(
        TableSpec(
            "cases",
            "What stands still, dies or wakes up late",
            ("case",),
            by=(fact("what", "what happens"),),
            columns=(
                cell("outcomes", "how the attempts ended", "text", _ends),
                most("waited", "longest wait, in limits", "number", of="found_after"),
                count("good", "as promised", _good),
                size(),
            ),
        ),
        TableSpec(
            "stories",
            "What the detector makes of it",
            ("story",),
            by=(fact("what", "story"),),
            columns=(count("bad", "count", lambda r: not _good(r)), size()),
            note=(
                "slow: 1,000 steps, some as long as several timeouts. suspended: the supervisor is,"
                " for hours. standing: ranks stand, the writer moves."
            ),
        ),
        mutants_table(
            (fact("what", "planted bug"), yes("shown", "found", lambda r: r.found["shown"]))
        ),
    ),
    gates=(
        OVER,
        all_of("as_promised", "case", _good, "trials that ended as promised"),
        all_of(
            "nothing_left",
            "case",
            lambda r: not r.found["left"] and not r.found["shared_memory"],
            "trials left no process and no shared memory",
        ),
        _in_time,
        all_of(
            "detector",
            "story",
            _good,
            "scenarios given to the detector under a simulated clock, as promised",
        ),
        mutants_found("what", "shown"),
    ),
    notes=_notes,
    alone=True,
)
