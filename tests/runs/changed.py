"""Hands that change the records of a run after they were loaded: cheaper than files, and for what no builder records."""

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
    return supervised(records, attempts=tuple(replace(a, **changes) if a.attempt == number else a for a in records.attempts))


def sessions(records: RunRecords, number: int, **changes: Any) -> RunRecords:
    """With another session `number` in supervisor.json."""
    return supervised(records, sessions=tuple(replace(s, **changes) if place == number else s for place, s in enumerate(records.sessions)))


def configured(records: RunRecords, **changes: Any) -> RunRecords:
    """With another configuration; its ids stay."""
    return replace(records, stored=replace(records.stored, config=replace(records.stored.config, **changes)))


def left(records: RunRecords, number: int, **changes: Any) -> RunRecords:
    """With other files in the folder of attempt `number`."""
    return replace(records, attempt_logs=tuple(replace(a, **changes) if a.attempt == number else a for a in records.attempt_logs))


def ordered(records: RunRecords, number: int, **changes: Any) -> RunRecords:
    """With another launch.json of attempt `number`."""
    order = records.logs(number).order
    assert order is not None
    return left(records, number, order=replace(order, **changes))


def kept(lines: Lines[T], keep: Callable[[T], T | None]) -> Lines[T]:
    """Each line as `keep` makes it; None drops it."""
    return replace(lines, events=tuple(line for each in lines.events if (line := keep(each)) is not None))


def logged(records: RunRecords, keep: Callable[[RankLine], RankLine | None], number: int = 0) -> RunRecords:
    """With other lines of the ranks of attempt `number`."""
    return left(records, number, ranks={rank: kept(lines, keep) for rank, lines in records.logs(number).ranks.items()})
