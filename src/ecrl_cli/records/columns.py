"""Logs as columns: one array per field, read many lines at a time.

A log of a long run has as many lines as steps: as arrays they take a tenth of the memory and can be
compared all at once. Only plain lines are read like that, which have the form that ECRL writes; a
log with any other is read line by line (`records.journal`), and has no columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol, TypeVar, overload

import msgspec
import numpy as np
import numpy.typing as npt

from ecrl_cli.errors import RecordError
from ecrl_cli.records.events import CATEGORIES, RankLine, Span
from ecrl_cli.records.journal import Lines, Log, line_struct, read_journal
from ecrl_cli.records.safe_read import MAX_JOURNAL, read_pieces
from ecrl_cli.records.state_digests import RANK_COMPONENTS

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Numbers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Digests = npt.NDArray[np.uint64]  # each four numbers: the 32 bytes of a digest
DIGEST_BYTES = 32
_HEX = 2 * DIGEST_BYTES  # digits of a digest


class Columns(Protocol[T_co]):
    """The fields of a log's lines, each an array in the order of the file."""

    def __len__(self) -> int: ...

    def lines(self, start: int, stop: int) -> Sequence[T_co]:
        """The lines from `start` to before `stop`."""
        ...


@dataclass(frozen=True, eq=False)
class RankColumns:
    """A rank's log. Fields as in `RankLine`, but for these:

    `samples`, `inputs`: (lines, 4), the digests `sample_ids_hash` and `inputs_hash`; `inputs_name`:
    the name before that digest. `targets` and `targets_name` likewise of `targets_hash`; (0, 4) in
    older records, where no line has one. `lr` is NaN where the line has none. Digests of the state
    are on some lines only: `digest_rows`, the places of these lines; `states`: (of these, 4), the
    digest `state_digest`; `components`: (of these, 5, 4), in the order of RANK_COMPONENTS.
    """

    global_step: Numbers
    epoch: Numbers
    cursor_step: Numbers
    rank: Numbers
    world_size: Numbers
    sample_ids_count: Numbers
    attempt: Numbers
    loss: Floats
    seconds: Floats
    at: Floats
    time: Floats
    lr: Floats
    samples: Digests
    inputs: Digests
    inputs_name: str
    targets: Digests
    targets_name: str
    digest_rows: Numbers
    states: Digests
    components: Digests

    def __len__(self) -> int:
        return len(self.global_step)

    @property
    def has_targets(self) -> bool:
        return len(self.targets) > 0

    @property
    def inputs_and_targets(self) -> Digests:
        """(lines, 8), or (lines, 4) in older records."""
        return np.hstack([self.inputs, self.targets]) if self.has_targets else self.inputs

    @cached_property
    def consecutive(self) -> bool:
        """Whether each line is of the step after the one before."""
        return bool((np.diff(self.global_step) == 1).all())

    def rows(self, after: int, until: int) -> slice:
        """The places of the steps `after` + 1 .. `until`, of consecutive lines."""
        first = int(self.global_step[0]) if len(self) else 1
        start = min(max(after + 1 - first, 0), len(self))
        return slice(start, max(start, min(until + 1 - first, len(self))))

    def digested(
        self, rows: slice | npt.NDArray[np.bool_]
    ) -> Iterator[tuple[int, str, dict[str, str]]]:
        """The place, the digest of the state and those by component of lines that have digests:
        `rows` of `digest_rows`.
        """
        parts = _grouped(_hex(self.components[rows]), len(RANK_COMPONENTS))
        components = (dict(zip(RANK_COMPONENTS, digests, strict=True)) for digests in parts)
        return zip(
            self.digest_rows[rows].tolist(), _hex(self.states[rows]), components, strict=True
        )

    def lines(self, start: int, stop: int) -> Sequence[RankLine]:
        part = slice(start, stop)
        rows = slice(*np.searchsorted(self.digest_rows, (start, stop)))
        digested = {row - start: digests for row, *digests in self.digested(rows)}
        none = [None] * (stop - start)
        columns = (
            self.global_step[part].tolist(),
            self.epoch[part].tolist(),
            self.cursor_step[part].tolist(),
            self.rank[part].tolist(),
            self.world_size[part].tolist(),
            _hex(self.samples[part]),
            self.sample_ids_count[part].tolist(),
            self.loss[part].tolist(),
            self.attempt[part].tolist(),
            self.seconds[part].tolist(),
            self.at[part].tolist(),
            self.time[part].tolist(),
            [digested[row][0] if row in digested else None for row in range(stop - start)],
            _with_name(self.inputs_name, self.inputs[part]),
            [digested[row][1] if row in digested else None for row in range(stop - start)],
            [None if rate != rate else rate for rate in self.lr[part].tolist()],
            none,
            none,
            _with_name(self.targets_name, self.targets[part]) if self.has_targets else none,
        )
        return [RankLine(*values) for values in zip(*columns, strict=True)]


@dataclass(frozen=True, eq=False)
class SpanColumns:
    """A rank's spans. Fields as in `Span`, but for `category`: its place in CATEGORIES."""

    category: npt.NDArray[np.int8]
    start: Floats
    end: Floats
    attempt: Numbers
    global_step: Numbers

    def __len__(self) -> int:
        return len(self.start)

    @cached_property
    def ordered(self) -> bool:
        """Whether starts, ends and steps never decrease, so that they can be searched."""
        return all(
            bool((np.diff(column) >= 0).all())
            for column in (self.start, self.end, self.global_step)
        )

    def lines(self, start: int, stop: int) -> Sequence[Span]:
        part = slice(start, stop)
        columns = (
            [CATEGORIES[place] for place in self.category[part].tolist()],
            *(
                column[part].tolist()
                for column in (self.start, self.end, self.attempt, self.global_step)
            ),
        )
        return [Span(*values) for values in zip(*columns, strict=True)]


class ColumnLines(Sequence[T]):
    """The lines of columns as a sequence: each is made when it is asked for; all are made, and
    kept, where they are gone through.
    """

    def __init__(self, columns: Columns[T]) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns)

    @cached_property
    def _all(self) -> tuple[T, ...]:
        return tuple(self.columns.lines(0, len(self)))

    def __iter__(self) -> Iterator[T]:
        return iter(self._all)

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[T]: ...
    def __getitem__(self, place: int | slice) -> T | Sequence[T]:
        if "_all" in self.__dict__:
            return self._all[place]
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            return self.columns.lines(start, max(start, stop)) if step == 1 else self._all[place]
        row = range(len(self))[place]
        return self.columns.lines(row, row + 1)[0]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # as of a list


class FileLines(Sequence[bytes]):
    """The bytes of a log's lines, newline included, read from the file again where they are gone
    through: in memory they would take more than all columns.
    """

    def __init__(self, path: Path, ends: Numbers) -> None:
        self._path, self._ends = path, ends

    def __len__(self) -> int:
        return len(self._ends)

    def between(self, start: int, stop: int) -> Iterator[list[bytes]]:
        """The lines from `start` to before `stop`, without their newlines, some thousand at a time;
        RecordError if the file is not as it was.
        """
        begin = int(self._ends[start - 1]) if start else 0
        end = int(self._ends[stop - 1]) if stop > start else begin
        left, changed = stop - start, RecordError(self._path.name, "changed while it was read")
        for piece, whole in read_pieces(self._path, MAX_JOURNAL, end, begin):
            lines = piece[:-1].split(b"\n")
            left -= len(lines)
            if not whole or left < 0:
                raise changed
            yield lines
        if left:
            raise changed

    def __iter__(self) -> Iterator[bytes]:
        for lines in self.between(0, len(self)):
            yield from (line + b"\n" for line in lines)

    @overload
    def __getitem__(self, place: int) -> bytes: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[bytes]: ...
    def __getitem__(self, place: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(place, slice):
            return tuple(self)[place]
        row = range(len(self))[place]
        return next(self.between(row, row + 1))[0] + b"\n"


def rank_columns(lines: Log[RankLine]) -> RankColumns | None:
    """The columns of a rank's log; None if it was read line by line."""
    columns = lines.events.columns if isinstance(lines.events, ColumnLines) else None
    return columns if isinstance(columns, RankColumns) else None


def span_columns(spans: Sequence[Span]) -> SpanColumns | None:
    """The columns of a rank's spans; None if they were read line by line."""
    columns = spans.columns if isinstance(spans, ColumnLines) else None
    return columns if isinstance(columns, SpanColumns) else None


def read_log(
    path: Path, kind: type[T], limit: int = MAX_JOURNAL, until: int | None = None
) -> Log[T]:
    """Read as `read_journal` does, with columns where all lines are plain."""
    made = _PIECES.get(kind)
    if made is None or not path.exists():
        return read_journal(path, kind, limit, until)
    try:
        pieces, ends, torn = _read_pieces(path, kind, made, limit, until)
        columns = _joined(pieces) if pieces else None
    except _NotPlainError:
        return read_journal(path, kind, limit, until)
    if columns is None:
        return Lines((), (), torn)
    return Log(ColumnLines(columns), FileLines(path, np.concatenate(ends)), torn)


class _NotPlainError(ValueError):
    """A line has another form than those that ECRL writes."""


def _read_pieces(
    path: Path, kind: type[T], made: Callable[[list[Any]], Any], limit: int, until: int | None
) -> tuple[list[Any], list[Numbers], int]:
    """The columns and ends of lines, piece by piece, and whether the last line is torn."""
    struct = line_struct(kind)  # type: ignore[arg-type]  # a type is hashable
    assert struct is not None
    decode = msgspec.json.Decoder(struct).decode_lines
    pieces, ends, at, torn = list[Any](), list[Numbers](), 0, 0
    for piece, whole in read_pieces(path, limit, until):
        if not whole:
            torn += 1
            continue
        here = _ends_of_lines(piece)
        try:
            parsed = decode(piece)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise _NotPlainError from error
        if len(parsed) != len(here):
            raise _NotPlainError
        pieces.append(made(parsed))
        ends.append(here + at)
        at += len(piece)
    return pieces, ends, torn


def _ends_of_lines(piece: bytes) -> Numbers:
    """Where each line of `piece` ends; each must begin and end as an object does, for the parser
    takes a newline as any other space. With as many objects as lines, each line is one.
    """
    array = np.frombuffer(piece, dtype=np.uint8)
    newlines = np.flatnonzero(array == ord("\n"))
    starts = np.concatenate(([0], newlines[:-1] + 1))
    if (array[starts] != ord("{")).any() or (array[newlines - 1] != ord("}")).any():
        raise _NotPlainError
    return (newlines + 1).astype(np.int64, copy=False)


_RANK_FIELDS = tuple(
    field.name for field in fields(RankLine) if field.name not in ("loss_scale", "growth_tracker")
)


def _rank_piece(parsed: list[Any]) -> RankColumns:
    if set(map(attrgetter("loss_scale", "growth_tracker"), parsed)) != {(None, None)}:
        raise _NotPlainError
    texts: dict[str, Any] = dict(
        zip(_RANK_FIELDS, zip(*map(attrgetter(*_RANK_FIELDS), parsed), strict=True), strict=True)
    )
    if not set(map(type, texts["loss"])) <= {float, int} or None in texts["inputs_hash"]:
        raise _NotPlainError
    inputs_name, inputs = _named_digests(texts["inputs_hash"])
    absent = texts["targets_hash"].count(None)
    if absent not in (0, len(parsed)):
        raise _NotPlainError
    targets_name, targets = _named_digests(() if absent else texts["targets_hash"])
    rows = [row for row, parts in enumerate(texts["components"]) if parts is not None]
    states = [texts["state_digest"][row] for row in rows]
    if len(parsed) - texts["state_digest"].count(None) != len(rows) or None in states:
        raise _NotPlainError
    components = [texts["components"][row] for row in rows]
    if any(tuple(parts) != RANK_COMPONENTS for parts in components):
        raise _NotPlainError
    numbers: dict[str, Any] = {
        name: np.array(texts[name], dtype=np.int64 if name in _WHOLE_NUMBERS else np.float64)
        for name in (*_WHOLE_NUMBERS, *_FLOATS)
    }
    rates = [np.nan if rate is None else rate for rate in texts["lr"]]
    return RankColumns(
        **numbers,
        lr=np.array(rates, dtype=np.float64),
        samples=_digests(texts["sample_ids_hash"]),
        inputs=inputs,
        inputs_name=inputs_name,
        targets=targets,
        targets_name=targets_name,
        digest_rows=np.array(rows, dtype=np.int64),
        states=_digests(states),
        components=_digests(list(chain.from_iterable(map(dict.values, components)))).reshape(
            -1, len(RANK_COMPONENTS), 4
        ),
    )


_WHOLE_NUMBERS = (
    "global_step",
    "epoch",
    "cursor_step",
    "rank",
    "world_size",
    "sample_ids_count",
    "attempt",
)
_FLOATS = ("loss", "seconds", "at", "time")
CATEGORY_PLACES = {category: place for place, category in enumerate(CATEGORIES)}


def _span_piece(parsed: list[Any]) -> SpanColumns:
    names = ("category", "start", "end", "attempt", "global_step")
    category, start, end, attempt, step = zip(*map(attrgetter(*names), parsed), strict=True)
    try:
        places = [CATEGORY_PLACES[name] for name in category]
    except KeyError as error:
        raise _NotPlainError from error
    return SpanColumns(
        np.array(places, dtype=np.int8),
        np.array(start, dtype=np.float64),
        np.array(end, dtype=np.float64),
        np.array(attempt, dtype=np.int64),
        np.array(step, dtype=np.int64),
    )


_PIECES: dict[type, Callable[[list[Any]], Any]] = {RankLine: _rank_piece, Span: _span_piece}


def _joined(pieces: list[Any]) -> Any:
    """One columns of all pieces, column by column, so that only one is in memory twice."""
    first = pieces[0]
    if len(pieces) == 1:
        return first
    columns_by_name: dict[str, Any] = {}
    for field in fields(first):
        columns = [getattr(piece, field.name) for piece in pieces]
        if field.name == "digest_rows":
            sizes = np.cumsum([0, *map(len, pieces[:-1])])
            columns = [rows + size for rows, size in zip(columns, sizes, strict=True)]
        if isinstance(columns[0], str):
            if len(set(columns)) > 1:
                raise _NotPlainError
            columns_by_name[field.name] = columns[0]
        else:
            columns_by_name[field.name] = np.concatenate(columns)
    joined = type(first)(**columns_by_name)
    if isinstance(joined, RankColumns) and len(joined.targets) not in (0, len(joined)):
        raise _NotPlainError
    return joined


def _digests(texts: Sequence[str]) -> Digests:
    """(texts, 4): digests of 64 lower-case hex digits."""
    joined = "".join(texts)
    try:
        data = bytes.fromhex(joined)
    except ValueError as error:
        raise _NotPlainError from error
    if data.hex() != joined or not set(map(len, texts)) <= {_HEX}:
        raise _NotPlainError
    return np.frombuffer(data, dtype=np.uint64).reshape(-1, 4)


def _named_digests(texts: Sequence[str]) -> tuple[str, Digests]:
    """Digests that all have the same name before a colon, or none."""
    heads = {text[:-_HEX] for text in texts} or {""}
    name, colon, rest = heads.pop().partition(":")
    if heads or rest or bool(name) != bool(colon):
        raise _NotPlainError
    return name, _digests([text[-_HEX:] for text in texts])


def _with_name(name: str, digests: Digests) -> list[str]:
    prefix = f"{name}:" if name else ""
    return [prefix + digest for digest in _hex(digests)]


def _hex(digests: Digests) -> list[str]:
    """Each digest as its hex digits."""
    text = digests.tobytes().hex()
    return [text[at : at + _HEX] for at in range(0, len(text), _HEX)]


def _grouped(texts: list[str], size: int) -> list[list[str]]:
    return [texts[at : at + size] for at in range(0, len(texts), size)]
