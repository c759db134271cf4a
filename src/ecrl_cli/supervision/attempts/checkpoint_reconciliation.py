"""Reconciles the checkpoint log with the store after an attempt: every submitted checkpoint ends as
committed, failed or lost.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from ecrl_cli.checkpoint.format.train_document import state_in
from ecrl_cli.checkpoint.store.catalog import entry_of
from ecrl_cli.checkpoint.store.integrity import IntegrityReport
from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.linux.clock import monotonic, wall
from ecrl_cli.records.events import (
    CHECKPOINT_ENDS,
    FOUND,
    LEFT_UNCOMMITTED,
    LEFT_WHOLE,
    Attempt,
    CheckpointLine,
)
from ecrl_cli.records.journal import Journal, read_journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.safe_read import MAX_JOURNAL, read_whole


def lines(layout: RunLayout, attempt: int) -> tuple[CheckpointLine, ...]:
    return read_journal(layout.attempt(attempt).checkpoints, CheckpointLine).events


def unended(events: tuple[CheckpointLine, ...], began: str) -> tuple[CheckpointLine, ...]:
    """The lines of event `began` (submitted, received) whose checkpoint has no final event yet."""
    ended = {line.global_step for line in events if line.event in CHECKPOINT_ENDS}
    return tuple(line for line in events if line.event == began and line.global_step not in ended)


def reconcile_checkpoints(layout: RunLayout, attempt: int, store: CheckpointStore) -> None:
    """Log the end of every checkpoint that `attempt` left open, by what the store contains.

    Only once no process of the attempt and no writer is running.
    """
    open_lines = unended(lines(layout, attempt), "submitted")
    if open_lines:
        _cut_torn_tail(layout.attempt(attempt).checkpoints)
        _close(layout, attempt, open_lines, store)


def close_received(layout: RunLayout, store: CheckpointStore) -> None:
    """Log the end of the checkpoints that a dead writer had received, before its successor starts.

    The successor's retention might remove a checkpoint that the dead writer committed but did not
    log.
    """
    for attempt in layout.attempts():
        _close(layout, attempt, unended(lines(layout, attempt), "received"), store)


def _close(
    layout: RunLayout, attempt: int, open_lines: tuple[CheckpointLine, ...], store: CheckpointStore
) -> None:
    if not open_lines:
        return
    journal = Journal(layout.attempt(attempt).checkpoints)
    for line in open_lines:
        journal.append(_end(layout, line, store))
    journal.close()


def still_kept(layout: RunLayout, attempts: tuple[Attempt, ...]) -> dict[int, CheckpointLine]:
    """By step, the `committed` lines of checkpoints that retention has not removed and none of
    `attempts` has rejected.
    """
    kept: dict[int, CheckpointLine] = {}
    for number in layout.attempts():
        for refused in attempts[number].rejected if number < len(attempts) else ():
            kept.pop(entry_of(layout.root / refused.path).global_step, None)
        for line in lines(layout, number):
            if line.event == "committed":
                kept[line.global_step] = line
            elif line.event == "retired":
                kept.pop(line.global_step, None)
    return kept


def acknowledge(layout: RunLayout, report: IntegrityReport) -> None:
    """Log the checkpoint of `report` as committed in the attempt that wrote it, unless it is logged
    already. Called before a run resumes from it.
    """
    known = {
        line.commit_sha256
        for attempt in layout.attempts()
        for line in lines(layout, attempt)
        if line.event == "committed"
    }
    if report.commit_sha256 in known or report.attempt is None or report.global_step is None:
        return
    journal = Journal(layout.attempt(report.attempt).checkpoints)
    found = CheckpointLine(
        "committed", report.global_step, report.attempt, monotonic(), wall(), reason=FOUND
    )
    journal.append(
        replace(
            found,
            path=layout.relative(report.path),
            commit_sha256=report.commit_sha256,
            saved_state=_state(report),
        )
    )
    journal.close()


def _end(layout: RunLayout, line: CheckpointLine, store: CheckpointStore) -> CheckpointLine:
    found = store.reconcile(line.global_step, line.attempt)
    ended = CheckpointLine(
        "lost",
        line.global_step,
        line.attempt,
        monotonic(),
        wall(),
        bytes=line.bytes,
        reason=LEFT_UNCOMMITTED,
    )
    if found is None:
        return ended
    path = layout.relative(found.path)
    return replace(
        ended,
        event="committed",
        path=path,
        commit_sha256=found.commit_sha256,
        saved_state=_state(found),
        reason=LEFT_WHOLE,
    )


def _state(report: IntegrityReport) -> dict[str, str]:
    """One digest per component of a checkpoint; empty where another checkpointer wrote it."""
    return state_in(report.manifest, report.train) if report.manifest else {}


def _cut_torn_tail(path: Path) -> None:
    """Remove an incomplete last line, left by a process killed while writing: the next line would
    be appended to it.
    """
    data = read_whole(path, MAX_JOURNAL)
    if not data.endswith(b"\n"):
        os.truncate(path, data.rfind(b"\n") + 1)
