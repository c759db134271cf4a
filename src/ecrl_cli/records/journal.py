"""Append-only JSON lines: one write per line, so that a process that dies leaves at most one torn
line.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from ecrl_cli.config.codec import alternatives, decode, encode, hints_of
from ecrl_cli.config.limits import LIMITS, WHOLE
from ecrl_cli.errors import RecordError, StorageError
from ecrl_cli.records.safe_read import MAX_JOURNAL, parsed, read_lines, read_whole

T = TypeVar("T")
# an integer beyond is refused, where a float is expected too: lines with such numbers are left to
# `decode`
_WIDE = 2.0**63
MOST_TORN = 1000  # each is left by a process that died in the middle of a write


def line_of(event: object) -> bytes:
    """The bytes of one line, newline included: exactly these are written and hashed."""
    return (json.dumps(encode(event), separators=(",", ":"), allow_nan=True) + "\n").encode()


class Journal:
    """Appends events to one file; several processes may share it (O_APPEND, one write per line).

    If another process died and left a torn last line, it is closed with a newline first, so that no
    line of this writer is joined to it.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._fd = os.open(
            path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666
        )
        size = os.fstat(self._fd).st_size
        self._gap = b"\n" if size and os.pread(self._fd, 1, size - 1) != b"\n" else b""

    def append(self, event: object) -> bytes:
        """Write one line to the kernel and return its bytes. StorageError if it cannot be written
        in full: then none of it remains.
        """
        line = line_of(event)
        rest = self._gap + line
        try:
            while rest := rest[os.write(self._fd, rest) :]:
                pass  # a partial write: the next call writes more or raises the reason
        except OSError as error:
            self._take_back(len(self._gap + line) - len(rest))
            raise StorageError.of("append", self._path, error, len(rest)) from error
        self._gap = b""
        return line

    def _take_back(self, written: int) -> None:
        """Truncate the last `written` bytes, unless another process has appended after them."""
        end = os.lseek(self._fd, 0, os.SEEK_CUR)
        if written and os.fstat(self._fd).st_size == end:
            os.ftruncate(self._fd, end - written)

    def close(self) -> None:
        os.close(self._fd)


@dataclass(frozen=True)
class Log(Generic[T]):
    """The content of a journal: the events in order, the bytes of each, and the number of torn
    lines (the last, and in a shared journal any).
    """

    events: Sequence[T]
    raw: Sequence[bytes]
    torn: int


@dataclass(frozen=True)
class Lines(Log[T]):
    """A log whose lines are all in memory."""

    events: tuple[T, ...]
    raw: tuple[bytes, ...]


def read_journal(
    path: Path, kind: type[T], limit: int = MAX_JOURNAL, until: int | None = None
) -> Lines[T]:
    """All events of `path` (none if it is missing), of at most `limit` bytes. A torn last line is
    counted; damage before it is a RecordError.
    `until`: only those in its first so many bytes.

    In a journal with several writers (`kind.SHARED`), a torn line may precede complete lines of
    another process: there, any line that is not JSON is counted as torn. Its event is missing,
    which the checkpoint account shows.
    """
    if not path.exists():
        return Lines((), (), 0)
    shared = getattr(kind, "SHARED", False)
    at_once = line_decoder(kind)  # type: ignore[arg-type]  # a type is hashable
    events: list[T] = []
    raw: list[bytes] = []
    torn = 0
    for number, (line, whole) in enumerate(read_lines(path, limit, until), start=1):
        event = at_once(line) if whole else None
        if not whole or (event is None and shared and not _is_json(line)):
            torn += 1
            if torn > MOST_TORN:
                raise RecordError(
                    f"{path.name}:{number}",
                    f"more than {MOST_TORN} lines are torn",
                    "restore the file",
                )
            continue
        events.append(_parsed(path, number, line, kind) if event is None else event)
        raw.append(line + b"\n")
    return Lines(tuple(events), tuple(raw), torn)


@cache
def line_decoder(kind: type[T]) -> Callable[[bytes], T | None]:
    """A function that decodes a line in one go, about eight times as fast as `decode`. It gives
    None for a line that it does not take; then `decode` says what is wrong with it, or takes it
    after all (NaN, a number that only a float can hold).

    A run has thousands of lines. This takes less than `decode` does and never more: a kind with
    fields that it could read otherwise has none.
    """
    struct = line_struct(kind)  # type: ignore[arg-type]  # a type is hashable
    if struct is None:
        return lambda line: None
    parse = msgspec.json.Decoder(struct).decode
    values, new = msgspec.structs.asdict, kind.__new__

    def decoded(line: bytes) -> T | None:
        try:
            found = values(parse(line))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None
        event = new(kind)
        # what its __init__ does field by field: a frozen class's takes longer than the rest
        object.__setattr__(event, "__dict__", found)
        return event

    return decoded


@cache
def line_struct(kind: type[T]) -> type[msgspec.Struct] | None:
    """The form of a line for msgspec; None for a kind whose fields it could read otherwise than
    `decode`.
    """
    fields = [_field(field, hints_of(kind)[field.name]) for field in dataclasses.fields(kind)]  # type: ignore[arg-type]  # kinds of events
    if None in fields or hasattr(kind, "__post_init__"):
        return None
    return msgspec.defstruct(kind.__name__, fields, forbid_unknown_fields=True)  # type: ignore[arg-type]


def _field(
    field: dataclasses.Field[Any], hint: Any
) -> tuple[str, Any] | tuple[str, Any, Any] | None:
    """The field for msgspec, with the range of its numbers; None for a hint that the two decoders
    could read differently.
    """
    hints = [_bounded(field.name, each) for each in alternatives(hint)]
    if (
        None in hints
        or len([each for each in alternatives(hint) if each in (int, float, str, bool)]) > 1
    ):
        return None
    found: Any = hints[0]
    for each in hints[1:]:
        found |= each
    if field.default_factory is not dataclasses.MISSING:
        return field.name, found, msgspec.field(default_factory=field.default_factory)
    return (
        (field.name, found)
        if field.default is dataclasses.MISSING
        else (field.name, found, field.default)
    )


def _bounded(name: str, hint: Any) -> Any:
    if hint is int:
        low, high = LIMITS.get(name, (-WHOLE, WHOLE))
        return Annotated[int, msgspec.Meta(ge=low, le=high)]
    number = Annotated[float, msgspec.Meta(gt=-_WIDE, lt=_WIDE)]
    if hint in (str, bool, type(None), dict[str, str]):
        return hint
    return {
        float: number,
        tuple[float, ...]: tuple[number, ...],
        dict[str, float]: dict[str, number],
    }.get(hint)


def _is_json(line: bytes) -> bool:
    try:
        parsed(line)
    except ValueError:
        return False
    return True


def _parsed(path: Path, number: int, line: bytes, kind: type[T]) -> T:
    try:
        return decode(kind, parsed(line))
    except (ValueError, TypeError, KeyError) as error:
        raise RecordError(
            f"{path.name}:{number}", f"not a {kind.__name__} line ({error})", "restore the file"
        ) from error


def read_json(path: Path) -> Any:
    """The parsed JSON document; RecordError if it is damaged, FileNotFoundError if it is
    missing.
    """
    try:
        return parsed(read_whole(path))
    except ValueError as error:
        raise RecordError(path.name, f"not JSON ({error})", "restore the file") from error
