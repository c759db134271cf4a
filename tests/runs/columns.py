"""Records whose logs are lines in memory, so that they can be changed, and the same as columns, as
they are read from files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ecrl_cli.history.load import RunRecords
from ecrl_cli.records.columns import _PIECES, ColumnLines, _NotPlainError
from ecrl_cli.records.events import RankLine, Span
from ecrl_cli.records.journal import Lines, Log


def in_memory(records: RunRecords) -> RunRecords:
    """The records with the lines of ranks and their spans one by one."""
    return _with_logs(records, lambda kind, log: Lines(tuple(log.events), tuple(log.raw), log.torn))


def in_columns(records: RunRecords) -> RunRecords:
    """The records with the logs of ranks and their spans as columns, where all lines are plain."""
    return _with_logs(records, _columns)


def _columns(kind: type, log: Log[Any]) -> Log[Any]:
    try:
        columns = _PIECES[kind](list(log.events))
    except (_NotPlainError, OverflowError, ValueError):
        return log
    return Log(ColumnLines(columns), log.raw, log.torn)


def _with_logs(records: RunRecords, read: Callable[[type, Log[Any]], Log[Any]]) -> RunRecords:
    def some(kind: type, log: Log[Any]) -> Log[Any]:
        return read(kind, log) if len(log.events) else log

    return replace(
        records,
        attempt_logs=tuple(
            replace(
                a,
                ranks={rank: some(RankLine, log) for rank, log in a.ranks.items()},
                spans=some(Span, a.spans),
            )
            for a in records.attempt_logs
        ),
    )
