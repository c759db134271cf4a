"""Checks when the lines of a checkpoint journal were written: in their attempt, and each writer's
lines in the order of the file.

The training thread writes `submitted`, `released` and `waited`; the writer writes `received` in one
thread and how a save ended in another; without a background writer the training thread writes them
all. The supervisor, or the next writer, writes how a save ended whose writer had died (RECONCILED):
perhaps in a later session, of another boot.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.records.events import CHECKPOINT_ENDS, RECONCILED, Attempt, CheckpointLine
from ecrl_cli.verify.rank_spans import ROUNDING_S
from ecrl_cli.verify.verdict import FindingBuilder
from ecrl_cli.verify.verification_input import Case, saves

TRAINING_THREAD = ("submitted", "released", "waited")
_IN_ORDER = (
    *(("submitted", then) for then in ("received", "released", *CHECKPOINT_ENDS)),
    *(("received", then) for then in CHECKPOINT_ENDS),
    ("committed", "retired"),
)
# a dead writer's saves are looked at by the next session that launches anything
_LATER_SESSIONS = 16
# `failed` too, but for those that rank 0 writes when the writer is gone
_BY_WRITER = ("committed", "retired", "pointer_failed")


def check_journal_instants(case: Case, a: Attempt, notes: FindingBuilder) -> None:
    """Check the journal of `a`: of what each writer wrote the first line that cannot be is
    reported, and every save out of order.
    """
    _check_save_order(case, a, notes)
    lines = case.run.logs(a.attempt).checkpoints.events
    for line in lines:
        if text := _outside(case, a, line):
            notes.broken(f"{named(line)} {text}")
            return
    for own in _by_writer(case, lines):
        for before, after in pairwise(own):
            if after.at < before.at - ROUNDING_S:
                notes.broken(
                    f"{named(after)} is dated {before.at - after.at:.6f} s before {named(before)},"
                    " which stands ahead of it"
                )
                return


def _check_save_order(case: Case, a: Attempt, notes: FindingBuilder) -> None:
    """A checkpoint is submitted, then received, then ends; the write lies between the last two; the
    training thread is released afterwards.
    """
    for step, found in saves(case.run.logs(a.attempt).checkpoints.events).items():
        for first, then in _IN_ORDER:
            late, early = found.get(first), found.get(then)
            if late and early and early.at < late.at - ROUNDING_S:
                notes.broken(
                    f"step {step} of attempt {a.attempt} was {then} {late.at - early.at:.6f} s"
                    f" before it was {first}"
                )
        received, committed = found.get("received"), found.get("committed")
        if (
            received
            and committed
            and committed.write_s + committed.commit_s > committed.at - received.at + ROUNDING_S
        ):
            text = (
                f"{committed.write_s + committed.commit_s:.6f} s of writing between two instants"
                f" {committed.at - received.at:.6f} s apart"
            )
            notes.broken(f"step {step} of attempt {a.attempt} was saved in {text}")


def named(line: CheckpointLine) -> str:
    return f"the {line.event[:40]} line of step {line.global_step} of attempt {line.attempt}"


def reconciled(line: CheckpointLine) -> bool:
    """Whether the line was written for a writer that had died."""
    return line.reason in RECONCILED


def session_of_line(case: Case, a: Attempt, line: CheckpointLine) -> int | None:
    """The session in which the line was written: the attempt's, or for a reconciled line the later
    one whose clocks it fits best.
    """
    if case.run.session_of(a) is None or not reconciled(line):
        return a.session if case.run.session_of(a) else None
    sessions = case.run.sessions
    there = range(a.session, min(len(sessions), a.session + _LATER_SESSIONS))
    inside = [
        n
        for n in there
        if sessions[n].started_at - ROUNDING_S <= line.at <= case.session_ends[n] + ROUNDING_S
    ]
    return min(
        inside,
        key=lambda n: abs(line.time - line.at - sessions[n].time + sessions[n].started_at),
        default=a.session,
    )


def writable_until(case: Case, a: Attempt, line: CheckpointLine) -> float:
    """When the process that writes the lines of this event for `a` had ended at the latest."""
    number = session_of_line(case, a, line)
    over = float("inf") if number is None else case.session_ends[number]
    if reconciled(line) or (
        strategy_of(case.run.stored.config).needs_writer and line.event not in TRAINING_THREAD
    ):
        return over
    following = case.attempt(a.attempt + 1)
    return (
        min(over, following.launched_at) if following and following.session == a.session else over
    )


def _outside(case: Case, a: Attempt, line: CheckpointLine) -> str:
    """By how much the line lies outside of its attempt; for a reconciled line, of the sessions from
    that attempt on. Empty if it does not.
    """
    number = session_of_line(case, a, line)
    began = (
        a.launched_at
        if number is None or number == a.session
        else case.run.sessions[number].started_at
    )
    if line.at < began - ROUNDING_S:
        return f"is dated {began - line.at:.3f} s before the attempt was launched"
    if line.at > (until := writable_until(case, a, line)) + ROUNDING_S:
        return f"is dated {line.at - until:.3f} s after whoever could write it was over"
    return ""


def _by_writer(case: Case, lines: tuple[CheckpointLine, ...]) -> Iterator[list[CheckpointLine]]:
    """The lines of each thread that writes them, in the order of the file."""
    own = [line for line in lines if not reconciled(line)]
    if strategy_of(case.run.stored.config).writes_in_step:
        yield own
        return
    yield [line for line in own if line.event in TRAINING_THREAD]
    yield [line for line in own if line.event == "received"]
    yield [line for line in own if line.event in _BY_WRITER]
