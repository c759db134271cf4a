"""Hands that change the records of a run after they were loaded: cheaper than files, and for what
no builder records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from ecrl_cli.history.load import RunRecords
from ecrl_cli.records.events import RankLine
from ecrl_cli.records.journal import Lines

T = TypeVar("T")
Records = Callable[[RunRecords], RunRecords]


def supervised(records: RunRecords, **changes: Any) -> RunRecords:
    """With another supervisor.json."""
    assert records.supervisor is not None
    return replace(records, supervisor=replace(records.supervisor, **changes))


def attempts(records: RunRecords, number: int, **changes: Any) -> RunRecords:
    """With another attempt `number` in supervisor.json."""
    return supervised(
        records,
        attempts=tuple(
            replace(a, **changes) if a.attempt == number else a for a in records.attempts
        ),
    )


def sessions(records: RunRecords, number: int, **changes: Any) -> RunRecords:
    """With another session `number` in supervisor.json."""
    return supervised(
        records,
        sessions=tuple(
            replace(s, **changes) if place == number else s
            for place, s in enumerate(records.sessions)
        ),
    )


def configured(records: RunRecords, **changes: Any) -> RunRecords:
    """With another configuration; its ids stay."""
    return replace(
        records, stored=replace(records.stored, config=replace(records.stored.config, **changes))
    )


def left(records: RunRecords, number: int, **changes: Any) -> RunRecords:
    """With other files in the folder of attempt `number`."""
    return replace(
        records,
        attempt_logs=tuple(
            replace(a, **changes) if a.attempt == number else a for a in records.attempt_logs
        ),
    )


def ordered(records: RunRecords, number: int, **changes: Any) -> RunRecords:
    """With another launch.json of attempt `number`."""
    order = records.logs(number).order
    assert order is not None
    return left(records, number, order=replace(order, **changes))


def kept(lines: Lines[T], keep: Callable[[T], T | None]) -> Lines[T]:
    """Each line as `keep` makes it; None drops it."""
    return replace(
        lines, events=tuple(line for each in lines.events if (line := keep(each)) is not None)
    )


def logged(
    records: RunRecords, keep: Callable[[RankLine], RankLine | None], number: int = 0
) -> RunRecords:
    """With other lines of the ranks of attempt `number`."""
    return left(
        records,
        number,
        ranks={rank: kept(lines, keep) for rank, lines in records.logs(number).ranks.items()},
    )


def rank_line(records: RunRecords, number: int, rank: int, step: int, **changes: Any) -> RunRecords:
    """With another line of `rank` for `step` in attempt `number`."""
    return logged(
        records,
        lambda line: (
            replace(line, **changes) if (line.global_step, line.rank) == (step, rank) else line
        ),
        number,
    )


def event(records: RunRecords, number: int, name: str, step: int, **changes: Any) -> RunRecords:
    """With another line of that event of the checkpoint of `step` in the journal of attempt
    `number`; nothing changed: without it.
    """
    lines = records.logs(number).checkpoints
    assert any((line.event, line.global_step) == (name, step) for line in lines.events), (
        f"attempt {number} has no such line"
    )
    changed = (lambda line: replace(line, **changes)) if changes else (lambda line: None)
    return left(
        records,
        number,
        checkpoints=kept(
            lines,
            lambda line: changed(line) if (line.event, line.global_step) == (name, step) else line,
        ),
    )


def fired(records: RunRecords, place: int, **changes: Any) -> RunRecords:
    """With another claim of a fault."""
    return replace(
        records,
        fired=tuple(
            replace(each, **changes) if number == place else each
            for number, each in enumerate(records.fired)
        ),
    )


def span(records: RunRecords, number: int, place: int, **changes: Any) -> RunRecords:
    """With another span of rank 0 in attempt `number`."""
    spans = list(records.logs(number).spans.events)
    spans[place] = replace(spans[place], **changes)
    return left(records, number, spans=replace(records.logs(number).spans, events=tuple(spans)))


def restored(records: RunRecords, number: int, rank: int, **changes: Any) -> RunRecords:
    """With another state that `rank` says it restored."""
    held = records.logs(number).restored
    return left(records, number, restored=held | {rank: replace(held[rank], **changes)})


def reported(records: RunRecords, number: int, rank: int, **changes: Any) -> RunRecords:
    """With another report of a survivor."""
    reports = records.logs(number).survivor_reports
    own = replace(
        reports[rank], events=tuple(replace(each, **changes) for each in reports[rank].events)
    )
    return left(records, number, survivor_reports=reports | {rank: own})


def appended(found: RunRecords, number: int, name: str, step: int, **changes: Any) -> RunRecords:
    """With one more line in the journal of attempt `number`: that of the event `name` with
    `changes`.
    """
    lines = found.logs(number).checkpoints
    line = next(line for line in lines.events if (line.event, line.global_step) == (name, step))
    return left(
        found, number, checkpoints=replace(lines, events=(*lines.events, replace(line, **changes)))
    )
