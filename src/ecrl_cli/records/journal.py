"""Append-only JSON lines: one write per line, so that a dead process leaves at most one torn line of its own."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from ecrl_cli.config.codec import decode, encode
from ecrl_cli.errors import RecordError, StorageError
from ecrl_cli.records.safe_read import MAX_JOURNAL, parsed, read_lines, read_whole

T = TypeVar("T")
MOST_TORN = 1000  # each is a process that died in the middle of a write


def line_of(event: object) -> bytes:
    """The bytes of one line, newline included: what is hashed is what is written."""
    return (json.dumps(encode(event), separators=(",", ":"), allow_nan=True) + "\n").encode()


class Journal:
    """Appends events to one file; several processes may share it (O_APPEND, one write per line).

    A torn end that another process left when it died is closed by a newline, so that it swallows no line of this one.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        size = os.fstat(self._fd).st_size
        self._gap = b"\n" if size and os.pread(self._fd, 1, size - 1) != b"\n" else b""

    def append(self, event: object) -> bytes:
        """Write one line; with the kernel when this returns. Gives its bytes. StorageError where it does not fit: then none of it stays."""
        line = line_of(event)
        rest = self._gap + line
        try:
            while rest := rest[os.write(self._fd, rest) :]:
                pass  # the kernel took a part: the next call takes more or says why not
        except OSError as error:
            self._take_back(len(self._gap + line) - len(rest))
            raise StorageError.of("append", self._path, error) from error
        self._gap = b""
        return line

    def _take_back(self, written: int) -> None:
        """Cut off the last `written` bytes, unless another process has written behind them."""
        end = os.lseek(self._fd, 0, os.SEEK_CUR)
        if written and os.fstat(self._fd).st_size == end:
            os.ftruncate(self._fd, end - written)

    def close(self) -> None:
        os.close(self._fd)


@dataclass(frozen=True)
class Lines(Generic[T]):
    """What a journal holds: the events in order, each one's bytes, and how many torn lines (the last, and in a shared one any)."""

    events: tuple[T, ...]
    raw: tuple[bytes, ...]
    torn: int


def read_journal(path: Path, kind: type[T], limit: int = MAX_JOURNAL) -> Lines[T]:
    """All events of `path` (none where it is missing), of at most `limit` bytes. A torn last line is counted; damage before it is a RecordError.

    Where several processes write (`kind.SHARED`), one's torn line may stand before another's whole ones: a line that is no JSON is
    counted there, too. What it said is missing, and the account of the checkpoints shows that.
    """
    if not path.exists():
        return Lines((), (), 0)
    shared = getattr(kind, "SHARED", False)
    events: list[T] = []
    raw: list[bytes] = []
    torn = 0
    for number, (line, whole) in enumerate(read_lines(path, limit), start=1):
        if not whole or (shared and not _is_json(line)):
            torn += 1
            if torn > MOST_TORN:
                raise RecordError(f"{path.name}:{number}", f"more than {MOST_TORN} lines are torn", "restore the file")
            continue
        events.append(_parsed(path, number, line, kind))
        raw.append(line + b"\n")
    return Lines(tuple(events), tuple(raw), torn)


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
        raise RecordError(f"{path.name}:{number}", f"not a {kind.__name__} line ({error})", "restore the file") from error


def read_json(path: Path) -> Any:
    """A JSON document; RecordError where it is damaged, FileNotFoundError where it is missing."""
    try:
        return parsed(read_whole(path))
    except ValueError as error:
        raise RecordError(path.name, f"not JSON ({error})", "restore the file") from error
