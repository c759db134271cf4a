"""Closing the books on an attempt's checkpoints: every submitted one ends as committed, failed or lost."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from ecrl_cli.checkpoint.store import CheckpointStore
from ecrl_cli.records.clock import monotonic, wall
from ecrl_cli.records.events import CHECKPOINT_ENDS, CheckpointLine
from ecrl_cli.records.journal import Journal, read_journal
from ecrl_cli.records.layout import RunLayout


def lines(layout: RunLayout, attempt: int) -> tuple[CheckpointLine, ...]:
    return read_journal(layout.attempt(attempt).checkpoints, CheckpointLine).events


def unended(events: tuple[CheckpointLine, ...], began: str) -> tuple[CheckpointLine, ...]:
    """The lines of event `began` (submitted, received) whose checkpoint has no end yet."""
    ended = {line.global_step for line in events if line.event in CHECKPOINT_ENDS}
    return tuple(line for line in events if line.event == began and line.global_step not in ended)


def close_books(layout: RunLayout, attempt: int, store: CheckpointStore) -> None:
    """End what `attempt` left open, once none of its processes and no writer is at work: by what the store holds, not by what was meant."""
    open_lines = unended(lines(layout, attempt), "submitted")
    if not open_lines:
        return
    path = layout.attempt(attempt).checkpoints
    _cut_torn_tail(path)
    journal = Journal(path)
    for line in open_lines:
        journal.append(_end(layout, line, store))
    journal.close()


def still_kept(layout: RunLayout) -> frozenset[int]:
    """Steps whose checkpoint was acknowledged and never retired."""
    events = [line for attempt in layout.attempts() for line in lines(layout, attempt)]
    return frozenset(e.global_step for e in events if e.event == "committed") - {e.global_step for e in events if e.event == "retired"}


def _end(layout: RunLayout, line: CheckpointLine, store: CheckpointStore) -> CheckpointLine:
    found = store.reconcile(line.global_step, line.attempt)
    ended = CheckpointLine("lost", line.global_step, line.attempt, monotonic(), wall(), bytes=line.bytes, reason="died before the commit")
    if found is None:
        return ended
    path = layout.relative(found.path)
    return replace(ended, event="committed", path=path, commit_sha256=found.commit_sha256, reason="found after the death of who wrote it")


def _cut_torn_tail(path: Path) -> None:
    """A line that a death cut off would swallow the next one."""
    data = path.read_bytes()
    if not data.endswith(b"\n"):
        os.truncate(path, data.rfind(b"\n") + 1)
