"""Checks that records use only known words and possible numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

import numpy as np

from ecrl_cli.checkpoint.format.names import LAYERS
from ecrl_cli.errors import shown
from ecrl_cli.history.load import AttemptRecords
from ecrl_cli.records.columns import rank_columns
from ecrl_cli.records.events import (
    CHECKPOINT_EVENTS,
    LOADER,
    MEMORIES,
    OUTCOMES,
    TERMINAL_STATUSES,
    RankLine,
    SupervisorRecord,
)
from ecrl_cli.records.heartbeat_table import PHASES
from ecrl_cli.records.journal import Log
from ecrl_cli.records.survivor_records import EFFECTS
from ecrl_cli.verify.verdict import FindingBuilder
from ecrl_cli.verify.verification_input import Case

_MAY_BE_NAN = ("loss",)  # of final.json, if the last attempt did no step itself
_MAY_BE_NEGATIVE = ("loss", "origins")  # a new rank that replaces none is -1


def check_words(case: Case, notes: FindingBuilder) -> None:
    """Check supervisor.json, fired faults and every attempt's journals; one note per file."""
    if case.run.supervisor:
        _check_file(
            "supervisor.json",
            [*_of_supervisor(case.run.supervisor), *_bad_numbers(case.run.supervisor)],
            notes,
        )
    if case.run.dataset:
        _check_file("dataset.json", list(_bad_numbers(case.run.dataset)), notes)
    for fired in case.run.fired:
        _check_file(
            case.run.layout.relative(case.run.layout.fired_entry(fired.index)),
            list(_bad_numbers(fired)),
            notes,
        )
    for logs in case.run.attempt_logs:
        _check_attempt(case, logs, notes)


def _check_attempt(case: Case, logs: AttemptRecords, notes: FindingBuilder) -> None:
    paths, relative = case.run.layout.attempt(logs.attempt), case.run.layout.relative
    for rank, lines in sorted(logs.ranks.items()):
        _check_file(
            relative(paths.rank(rank)),
            [] if _possible(lines) else [text for line in lines.events for text in _of_line(line)],
            notes,
        )
    words = [_word("an event", line.event, CHECKPOINT_EVENTS) for line in logs.checkpoints.events]
    found = [
        *filter(None, words),
        *(text for line in logs.checkpoints.events for text in _bad_numbers(line)),
    ]
    _check_file(relative(paths.checkpoints), found, notes)
    for rank, reports in sorted(logs.survivor_reports.items()):
        _check_file(
            relative(paths.survivor_report(rank)),
            [text for each in reports.events for text in _bad_numbers(each)],
            notes,
        )
    for rank, records in sorted(logs.lost_sample_records.items()):
        effects = [_word("an effect", line.effect, EFFECTS) for line in records.events]
        _check_file(relative(paths.lost_samples(rank)), list(filter(None, effects)), notes)
    if logs.order:
        memory = _word("a memory", logs.order.memory, MEMORIES)
        _check_file(
            relative(paths.launch), [*filter(None, [memory]), *_bad_numbers(logs.order)], notes
        )
    if logs.final:
        _check_file(relative(paths.final), list(_bad_numbers(logs.final)), notes)


def _check_file(path: str, found: list[str], notes: FindingBuilder) -> None:
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        notes.broken(f"{path}: {found[0]}{more}")


def _of_supervisor(record: SupervisorRecord) -> Iterator[str]:
    words = [_word("a terminal status", record.terminal_status, TERMINAL_STATUSES)]
    for a in record.attempts:
        words += [_word("an outcome", a.outcome, OUTCOMES), _word("a memory", a.memory, MEMORIES)]
        words += [_word("a phase", a.hang.phase, PHASES)] if a.hang else []
        words += [
            _word("a layer of the integrity check", rejected.layer, (*LAYERS, LOADER))
            for rejected in a.rejected
        ]
        words += [
            f"attempt {a.attempt} refused {shown(rejected.path)} for no reason"
            for rejected in a.rejected
            if not rejected.reason
        ]
    yield from filter(None, words)


def _word(what: str, word: str, known: tuple[str, ...]) -> str:
    """Empty if `word` is one of `known`."""
    return "" if word in known else f"{shown(word)} is not {what}"


def _possible(lines: Log[RankLine]) -> bool:
    """Whether every line of a log has finite numbers, and instants that are not negative."""
    columns = rank_columns(lines)
    return columns is not None and all(
        bool(np.isfinite(column).all() and (column is columns.loss or (column >= 0).all()))
        for column in (columns.loss, columns.seconds, columns.at, columns.time)
    )


def _of_line(line: RankLine) -> Iterator[str]:
    """Like `_bad_numbers`, but written out for speed: there is a line per rank and step. A step
    with a loss that is not finite is never logged.
    """
    losses = line.loss if isinstance(line.loss, tuple) else (line.loss,)
    if (
        not all(map(math.isfinite, (*losses, line.seconds, line.at, line.time)))
        or min(line.seconds, line.at, line.time) < 0
    ):
        yield f"step {line.global_step} has a number that cannot be"


@cache
def _names_of(kind: Any) -> tuple[str, ...]:
    """The fields of a dataclass; of anything else none."""
    return tuple(each.name for each in fields(kind)) if is_dataclass(kind) else ()


def _bad_numbers(record: Any, name: str = "") -> Iterator[str]:
    """The numbers of a record that are not finite, or negative where they must not be, by field
    name.
    """
    if names := _names_of(record.__class__):
        for field_name in names:
            yield from _bad_numbers(getattr(record, field_name), field_name)
    elif isinstance(record, tuple):
        for item in record:
            yield from _bad_numbers(item, name)
    elif isinstance(record, dict):
        for key, item in record.items():
            yield from _bad_numbers(item, str(key))
    elif isinstance(record, (int, float)) and not isinstance(record, bool):
        if not math.isfinite(record) and not (math.isnan(record) and name in _MAY_BE_NAN):
            yield f"{name} is {record}"
        elif record < 0 and name not in _MAY_BE_NEGATIVE:
            yield f"{name} is {record}, below 0"
