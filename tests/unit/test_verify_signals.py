"""Stop signals on record and attempts that were stopped explain each other."""

from __future__ import annotations

import pytest

from ecrl_cli.records.events import Attempt, SupervisorRecord, SupervisorSession
from ecrl_cli.verify.supervisor_record import _check_signals
from ecrl_cli.verify.verdict import INVALID, VALID, Finding, FindingBuilder


def verdict(
    signals: tuple[int, ...] | None,
    outcome: str = "stopped",
    reason: str = "stopped by SIGTERM; step 6 is durable",
) -> Finding:
    session = SupervisorSession(1.0, 2.0, "boot", 9.0, signals=signals)
    status = "stopped" if outcome == "stopped" else "completed"
    notes = FindingBuilder("it")
    _check_signals(
        SupervisorRecord(
            1, "", 12, status, 0, (Attempt(0, 2, outcome=outcome),), (session,), reason
        ),
        notes,
    )
    return notes.finding("")


@pytest.mark.parametrize("signals", [None, (15,), (2, 15), (15, 15)])
def test_a_stop_that_was_asked_for_is_believed(signals: tuple[int, ...] | None) -> None:
    assert verdict(signals).status == VALID


def test_signals_that_came_too_late_stop_nothing() -> None:
    assert verdict((15,), "completed", "target reached").status == VALID


@pytest.mark.parametrize(
    ("signals", "reason", "words"),
    [
        ((), "stopped by SIGTERM", "attempt 0 was stopped, and its session received no signal"),
        ((9,), "stopped by SIGKILL", "session 0 received signal 9, which stops no run"),
        (
            (15,),
            "stopped by SIGINT",
            "its last session received SIGTERM, and the reason names none of them",
        ),
    ],
)
def test_a_stop_that_nobody_asked_for_is_invalid(
    signals: tuple[int, ...], reason: str, words: str
) -> None:
    finding = verdict(signals, reason=reason)
    assert finding.status == INVALID and words in (
        text := "\n".join((finding.message, *finding.evidence))
    ), text
