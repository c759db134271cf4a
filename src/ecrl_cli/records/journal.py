"""Append-only JSON lines: one write per line, so that a dead process leaves at most one torn line, the last."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from ecrl_cli.config.codec import decode, encode
from ecrl_cli.errors import RecordError

T = TypeVar("T")


def line_of(event: object) -> bytes:
    """The bytes of one line, newline included: what is hashed is what is written."""
    return (json.dumps(encode(event), separators=(",", ":"), allow_nan=True) + "\n").encode()


class Journal:
    """Appends events to one file; several processes may share it (O_APPEND, one write per line)."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def append(self, event: object) -> bytes:
        """Write one line; with the kernel when this returns. Gives the bytes written."""
        line = line_of(event)
        os.write(self._fd, line)
        return line

    def close(self) -> None:
        os.close(self._fd)


@dataclass(frozen=True)
class Lines(Generic[T]):
    """What a journal holds: the events in order, each one's bytes, and how many torn lines its end has (0 or 1)."""

    events: tuple[T, ...]
    raw: tuple[bytes, ...]
    torn: int


def read_journal(path: Path, kind: type[T]) -> Lines[T]:
    """All events of `path` (none where it is missing). A torn last line is counted; damage before it is a RecordError."""
    if not path.exists():
        return Lines((), (), 0)
    *whole, tail = path.read_bytes().split(b"\n")
    events = tuple(_parsed(path, number, line, kind) for number, line in enumerate(whole, start=1))
    return Lines(events, tuple(line + b"\n" for line in whole), 1 if tail else 0)


def _parsed(path: Path, number: int, line: bytes, kind: type[T]) -> T:
    try:
        return decode(kind, json.loads(line))
    except (ValueError, TypeError, KeyError) as error:
        raise RecordError(f"{path.name}:{number}", f"not a {kind.__name__} line ({error})", "restore the file") from error


def read_json(path: Path) -> Any:
    """A JSON document; RecordError where it is damaged, FileNotFoundError where it is missing."""
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise RecordError(path.name, f"not JSON ({error})", "restore the file") from error


def follow(path: Path, offset: int) -> Iterator[tuple[int, bytes]]:
    """Whole lines past byte `offset`, each with the offset behind it: for readers beside a living writer."""
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            yield offset, line
