"""As test_verify_sentences, of the journals of the checkpoints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ecrl_cli.config.schema import StorageConfig
from ecrl_cli.history.load import RunRecords
from ecrl_cli.records.events import FOUND, LEFT_UNCOMMITTED, LEFT_WHOLE
from ecrl_cli.verify.checkpoints import checkpoints_accounted
from ecrl_cli.verify.journal_instants import session_of_line
from ecrl_cli.verify.time_accounting import time_conserved
from ecrl_cli.verify.verification_input import Case
from tests.runs.changed import (
    Records,
    appended,
    attempts,
    configured,
    event,
    left,
    logged,
    supervised,
)
from tests.runs.sentence import Judged, Row

OTHER = "b" * 64
ERROR = "E-storage write: EACCES at x"
WRITTEN = {"write_s": 0.0, "hash_s": 0.0, "commit_s": 0.0}
NO_FILES: dict[str, Any] = {**WRITTEN, "bytes": 0, "path": None, "commit_sha256": None}


def strategy(found: RunRecords, name: str, **changes: Any) -> RunRecords:
    return configured(
        found,
        checkpoint=replace(
            found.stored.config.checkpoint, strategy=name, max_inflight=2, **changes
        ),
    )


def captured(found: RunRecords, **changes: Any) -> RunRecords:
    """Captures that are left to the writer, but all were copies and say why; with `changes` of the
    line that submits step 12.
    """
    found = strategy(found, "overlapped", capture="deferred")
    for a in found.attempt_logs:
        events = tuple(
            replace(line, reason="no memory") if line.event == "submitted" else line
            for line in a.checkpoints.events
        )
        found = left(found, a.attempt, checkpoints=replace(a.checkpoints, events=events))
    return event(found, 1, "submitted", 12, **changes) if changes else found


def failed(found: RunRecords, **changes: Any) -> RunRecords:
    """The save of step 12 failed."""
    return event(
        found, 1, "committed", 12, **NO_FILES | {"event": "failed", "reason": ERROR} | changes
    )


def ended(found: RunRecords, name: str, **changes: Any) -> RunRecords:
    """The save of step 12 ended so."""
    return event(
        found,
        1,
        "committed",
        12,
        **({} if name == "committed" else NO_FILES | {"event": name}) | changes,
    )


def saved_again(found: RunRecords) -> RunRecords:
    """Step 6 was committed again in attempt 2."""
    again = next(line for line in found.logs(0).checkpoints.events if line.event == "committed")
    lines = found.logs(2).checkpoints
    return left(
        found, 2, checkpoints=replace(lines, events=(*lines.events, replace(again, attempt=2)))
    )


def two_boots(found: RunRecords) -> RunRecords:
    return supervised(
        found,
        sessions=(*found.sessions, replace(found.sessions[0], boot_id="other", started_at=5000.0)),
    )


def to_step(found: RunRecords, step: int) -> RunRecords:
    """The log of attempt 0 ends there, and nobody went on after the save of step 6."""
    found = logged(found, lambda line: line if line.global_step <= step else None, 0)
    return event(found, 0, "released", 6)


def of(number: int, name: str, step: int, **changes: Any) -> Records:
    return lambda found: event(found, number, name, step, **changes)


def throttled(found: RunRecords, seconds: float) -> RunRecords:
    """As many bytes a second as the save of step 12 has in `seconds`."""
    size = next(line.bytes for line in found.logs(1).checkpoints.events if line.global_step == 12)
    found = configured(
        found, storage=replace(found.stored.config.storage, bytes_per_s=size / seconds)
    )
    return event(found, 1, "committed", 12, write_s=0.015)


ROWS: dict[str, Row] = {
    "written faster than the storage writes": Row(
        checkpoints_accounted,
        "blk",
        lambda found: throttled(found, 0.0161),
        "'committed' of step 12 in the journal of attempt 1 wrote",
        right=(
            lambda found: throttled(found, 0.0159),
            lambda found: configured(found, storage=StorageConfig()),
            # what was there already was not written again
            lambda found: event(throttled(found, 0.0161), 1, "committed", 12, write_s=0.0),
        ),
    ),
    "committed, and nobody received it": Row(
        checkpoints_accounted,
        "blk",
        of(1, "received", 12),
        "the save of step 12 in attempt 1 was committed, and no line says that whoever writes had"
        " received it",
        right=(
            lambda found: event(
                event(found, 1, "received", 12), 1, "committed", 12, reason=FOUND, **WRITTEN
            ),
        ),
    ),
    "failed, and nobody received it": Row(
        checkpoints_accounted,
        "blk",
        lambda found: event(failed(found), 1, "received", 12),
        "the save of step 12 in attempt 1 was said to have failed, and no line says that whoever"
        " writes had received it",
        right=(
            failed,
            lambda found: strategy(event(failed(found), 1, "received", 12), "overlapped"),
        ),
    ),
    "went on unsaid": Row(
        checkpoints_accounted,
        "blk",
        of(1, "released", 12),
        "the save of step 12 in attempt 1 was submitted, and no line says that rank 0 went on,"
        " which it did",
    ),
    "went on unsaid in an attempt that died": Row(
        checkpoints_accounted,
        "blk",
        lambda found: to_step(found, 7),
        "the save of step 6 in attempt 0 was submitted, and no line says that rank 0 went on, which"
        " it did",
        None,
        right=(lambda found: to_step(found, 6),),
    ),
    "ended well and went on unsaid": Row(
        checkpoints_accounted,
        "blk",
        of(2, "released", 24),
        "the save of step 24 in attempt 2 was submitted, and no line says that rank 0 went on,"
        " which it did",
        right=(lambda found: attempts(event(found, 2, "released", 24), 2, outcome="died"),),
    ),
    "nothing in flight": Row(
        checkpoints_accounted,
        "blk",
        of(1, "submitted", 12, inflight=0),
        "step 12 in attempt 1 was submitted with no checkpoint in flight",
    ),
    "nothing submitted": Row(
        checkpoints_accounted,
        "blk",
        of(1, "submitted", 12, bytes=0),
        "the save of step 12 in attempt 1 was submitted with no bytes",
        right=(
            lambda found: event(
                event(failed(found), 1, "received", 12), 1, "submitted", 12, bytes=0
            ),
            of(1, "submitted", 12, bytes=1),
        ),
    ),
    "nothing submitted, and received": Row(
        checkpoints_accounted,
        "blk",
        lambda found: event(failed(found), 1, "submitted", 12, bytes=0),
        "the save of step 12 in attempt 1 was submitted with no bytes",
    ),
    "nothing committed": Row(
        checkpoints_accounted,
        "blk",
        of(1, "committed", 12, bytes=0),
        "the save of step 12 in attempt 1 was committed with no bytes",
        right=(of(1, "committed", 12, bytes=0, reason=LEFT_WHOLE, **WRITTEN),),
    ),
    "committed in another attempt than the manifest's": Row(
        checkpoints_accounted,
        "blk",
        of(2, "committed", 24, attempt=1),
        "step 24 was committed in attempt 1, the manifest of checkpoints/step_00000024 says"
        " attempt 2",
        None,
        right=(of(2, "committed", 24, attempt=1, reason=FOUND),),
    ),
    "other bytes than submitted": Row(
        checkpoints_accounted,
        "blk",
        of(1, "committed", 12, bytes=7),
        "'committed' of step 12 in the journal of attempt 1 has 7 bytes",
        right=(
            of(1, "committed", 12, bytes=0),
            lambda found: event(
                event(found, 1, "submitted", 12, bytes=7), 1, "committed", 12, bytes=7
            ),
        ),
    ),
    "retired twice": Row(
        checkpoints_accounted,
        "blk",
        lambda found: appended(found, 2, "retired", 6),
        "attempt 2 retired step 6, which was retired before and not committed again",
        right=(
            lambda found: two_boots(appended(found, 2, "retired", 6)),
            lambda found: appended(saved_again(found), 2, "retired", 6),
        ),
    ),
    "a line before the one ahead of it": Row(
        time_conserved,
        "blk",
        lambda found: appended(found, 1, "committed", 18),
        "s before the released line of step 18 of attempt 1, which stands ahead of it",
        # written in another boot for a dead writer
        right=(lambda found: appended(found, 1, "committed", 18, reason=LEFT_WHOLE),),
    ),
    "retired under another path": Row(
        checkpoints_accounted,
        "blk",
        of(2, "retired", 6, path="checkpoints/step_00000006.pt"),
        "attempt 2 retired step 6 as 'checkpoints/step_00000006.pt' under the commit",
        right=(of(2, "retired", 6, path=None, commit_sha256=None),),
    ),
    "retired under another commit": Row(
        checkpoints_accounted,
        "blk",
        of(2, "retired", 6, commit_sha256=OTHER),
        "under the commit 'bbbbbbbb', which no line says",
    ),
    "retired and never saved": Row(
        checkpoints_accounted,
        "blk",
        lambda found: appended(
            found, 2, "retired", 6, global_step=7, path="checkpoints/step_00000007"
        ),
        "attempt 2 retired step 7, which nobody saved",
    ),
    "a field of another event": Row(
        checkpoints_accounted,
        "blk",
        of(1, "received", 12, write_s=1.0),
        "'received' of step 12 in the journal of attempt 1 has write_s 1.0, which is of another"
        " event",
    ),
    "a line of another attempt": Row(
        checkpoints_accounted,
        "blk",
        of(1, "received", 12, attempt=0),
        "'received' of step 12 in the journal of attempt 1 is a line of attempt 0",
    ),
    "no event": Row(
        checkpoints_accounted,
        "blk",
        of(1, "received", 12, event="moved"),
        "'moved' of step 12 in the journal of attempt 1 is no event of a checkpoint",
    ),
    "received twice": Row(
        checkpoints_accounted,
        "blk",
        lambda found: appended(found, 1, "received", 12),
        "'received' of step 12 in the journal of attempt 1 stands there twice",
    ),
    "received after its end": Row(
        checkpoints_accounted,
        "blk",
        lambda found: appended(found, 1, "received", 12),
        "'received' of step 12 in the journal of attempt 1 stands after its end (committed)",
    ),
    "submitted after its end": Row(
        checkpoints_accounted,
        "blk",
        lambda found: appended(found, 1, "submitted", 12),
        "'submitted' of step 12 in the journal of attempt 1 stands after its end (committed)",
    ),
    "never submitted": Row(
        checkpoints_accounted,
        "blk",
        of(1, "submitted", 12),
        "'committed' of step 12 in the journal of attempt 1 stands before it was submitted",
        right=(
            lambda found: event(
                event(found, 1, "submitted", 12), 1, "committed", 12, reason=FOUND, **WRITTEN
            ),
        ),
    ),
    "released before it was submitted": Row(
        checkpoints_accounted,
        "blk",
        of(1, "released", 12, at=1000.0),
        "older than the line that must stand before it (submitted)",
    ),
    "committed before it was received": Row(
        checkpoints_accounted,
        "blk",
        of(1, "committed", 12, at=1000.0),
        "older than the line that must stand before it (received)",
        right=(of(1, "committed", 12, at=1000.0, reason=LEFT_WHOLE, **WRITTEN),),
    ),
    **{
        f"a reason of {name} that is none": Row(
            checkpoints_accounted,
            "blk",
            lambda found, name=name, reason=reason: ended(found, name, reason=reason),
            f"'{name}' of step 12 in the journal of attempt 1 {words}",
            right=tuple(
                lambda found, name=name, each=each: ended(found, name, reason=each, **WRITTEN)
                for each in allowed
            ),
        )
        for name, reason, words, allowed in (
            ("committed", "x", "has the reason 'x', which is none", (None, FOUND, LEFT_WHOLE)),
            ("failed", None, "has no error as its reason, but None", (ERROR,)),
            ("failed", "it broke", "has no error as its reason, but 'it broke'", (ERROR,)),
            (
                "lost",
                "x",
                f"has the reason 'x', it can only be that its writer {LEFT_UNCOMMITTED}",
                (LEFT_UNCOMMITTED,),
            ),
        )
    },
    **{
        f"found, and {name} on record": Row(
            checkpoints_accounted,
            "blk",
            lambda found, name=name: event(
                found, 1, "committed", 12, **WRITTEN | {"reason": FOUND, name: 0.001}
            ),
            "was found after the fact, and says how long it took to write",
            right=(of(1, "committed", 12, reason=FOUND, **WRITTEN),),
        )
        for name in WRITTEN
    },
    **{
        f"{name} below nothing": Row(
            checkpoints_accounted,
            "blk",
            of(1, line, 12, **{name: -1e-9}),
            f"'{line}' of step 12 in the journal of attempt 1 has {name} -1e-09",
        )
        for line, name in (
            *(
                ("submitted", name)
                for name in ("snapshot_s", "copy_s", "serialize_s", "backpressure_s")
            ),
            *(("committed", name) for name in WRITTEN),
            *(("released", name) for name in ("enqueue_s", "stall_s")),
        )
    },
    **{
        f"{name} less than none": Row(
            checkpoints_accounted,
            "blk",
            of(1, "submitted", 12, **{name: -1}),
            f"'submitted' of step 12 in the journal of attempt 1 has {name} -1",
        )
        for name in ("bytes", "inflight", "deferred_bytes")
    },
    "a copy that takes longer than its capture": Row(
        checkpoints_accounted,
        "blk",
        of(1, "submitted", 12, copy_s=9.5),
        "'submitted' of step 12 in the journal of attempt 1 copied for 9.5 s of a",
    ),
    "a path of another step": Row(
        checkpoints_accounted,
        "blk",
        of(1, "committed", 12, path="checkpoints/step_00000013"),
        "names 'checkpoints/step_00000013' as its path",
    ),
    "no path": Row(
        checkpoints_accounted,
        "blk",
        of(1, "committed", 12, path=None),
        "'committed' of step 12 in the journal of attempt 1 names 'None' as its path",
    ),
    "a copy left to a writer that makes none": Row(
        checkpoints_accounted,
        "blk",
        of(1, "submitted", 12, deferred_bytes=5),
        "has deferred_bytes 5, captures are copies",
        right=(captured,),
    ),
    "a reason for a copy where all are": Row(
        checkpoints_accounted,
        "blk",
        of(1, "submitted", 12, reason="no memory"),
        "has reason 'no memory', captures are copies",
        right=(captured,),
    ),
    "a copy without a reason": Row(
        checkpoints_accounted,
        "blk",
        lambda found: captured(found, reason=None),
        "'submitted' of step 12 in the journal of attempt 1 was a copy, and does not say why",
        right=(captured, lambda found: captured(found, reason=None, deferred_bytes=5)),
    ),
    "a reason for what was left to the writer": Row(
        checkpoints_accounted,
        "blk",
        lambda found: captured(found, deferred_bytes=5),
        "gives a reason for a copy, and left it to the writer",
        right=(captured, lambda found: captured(found, reason=None, deferred_bytes=5)),
    ),
    "more left to the writer than there was": Row(
        checkpoints_accounted,
        "blk",
        lambda found: captured(found, reason=None, deferred_bytes=8, bytes=7),
        "left 8 of 7 bytes to the writer",
        right=(lambda found: captured(found, reason=None, deferred_bytes=7, bytes=7),),
    ),
    "a wait for what was not left to the writer": Row(
        checkpoints_accounted,
        "blk",
        lambda found: appended(captured(found), 1, "released", 12, event="waited"),
        "'waited' of step 12 in the journal of attempt 1 waited for the copy of what was not left"
        " to the writer",
        right=(
            lambda found: appended(
                captured(found, reason=None, deferred_bytes=5), 1, "released", 12, event="waited"
            ),
        ),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_what_is_wrong_is_told_and_what_is_right_is_not(judged: Judged, name: str) -> None:
    judged.hold(ROWS[name])


def test_a_line_for_a_dead_writer_belongs_to_the_session_whose_clocks_it_shows(
    judged: Judged,
) -> None:
    """Two boots whose monotonic clocks showed the same numbers, a day apart: the wall clock tells
    them apart.
    """
    found, day = judged.runs["blk"], 86400.0
    first, a = found.sessions[0], found.attempts[1]
    case = Case(
        supervised(found, sessions=(first, replace(first, boot_id="other", time=first.time + day)))
    )
    line = next(line for line in found.logs(1).checkpoints.events if line.event == "committed")
    line = replace(line, reason=LEFT_WHOLE)
    assert session_of_line(case, a, line) == 0
    assert session_of_line(case, a, replace(line, time=line.time + day)) == 1


def test_a_line_written_for_a_dead_writer_is_of_the_session_it_lies_in(judged: Judged) -> None:
    """A later one of the same boot: the first was over by then."""
    found = judged.runs["blk"]
    a, first = found.attempts[1], found.sessions[0]
    line = replace(
        next(line for line in found.logs(1).checkpoints.events if line.event == "committed"),
        reason=LEFT_WHOLE,
    )
    began = line.at - 0.5
    before = replace(first, ended_at=line.at - 1.0)
    after = replace(first, started_at=began, time=first.time + began - first.started_at)
    assert session_of_line(Case(supervised(found, sessions=(before, after))), a, line) == 1
