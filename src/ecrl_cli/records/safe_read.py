"""Reading records from an untrusted folder: regular files only, never through a link, never more
than a limit.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ecrl_cli.errors import RecordError, RecordTooLarge

MAX_DOCUMENT = 16 * 2**20  # of JSON: takes a second to parse, and about 400 MB at worst
MAX_JOURNAL = 2**30
MAX_LINE = 4 * 2**20
_PIECE = 2**20


def read_whole(path: Path, limit: int = MAX_DOCUMENT) -> bytes:
    """The bytes of `path`. RecordError, before anything is read, unless it is a regular file of at
    most `limit` bytes; OSError as from `open`.
    """
    with opened(path, limit) as fd:
        return _read(fd, limit)


def read_lines(
    path: Path, limit: int = MAX_JOURNAL, until: int | None = None
) -> Iterator[tuple[bytes, bool]]:
    """Each line without its newline, and whether it had one: the last may be torn. RecordError as
    `read_pieces`. `until`: read no further than that many bytes.
    """
    for piece, whole in read_pieces(path, limit, until):
        if whole:
            for line in piece[:-1].split(b"\n"):
                yield line, True
        else:
            yield piece, False


def read_pieces(
    path: Path, limit: int = MAX_JOURNAL, until: int | None = None, start: int = 0
) -> Iterator[tuple[bytes, bool]]:
    """Many whole lines at a time, with their newlines, and True; then what follows the last
    newline, if anything, and False. RecordError as `read_whole`, and for a line of more than
    MAX_LINE bytes. `until`: read no further than that many bytes. `start`: the first byte read.
    """
    with opened(path, limit) as fd:
        os.lseek(fd, start, os.SEEK_SET)
        rest, left = b"", (limit if until is None else min(limit, until)) - start
        while left > 0 and (piece := os.read(fd, min(_PIECE, left))):
            left -= len(piece)
            lines, newline, last = piece.rpartition(b"\n")
            if newline:
                yield rest + lines + newline, True
                rest = last
            else:
                rest += piece
            if len(rest) > MAX_LINE:
                raise RecordTooLarge(
                    path.name, f"has a line of more than {MAX_LINE} bytes", "restore the file"
                )
        if rest:
            yield rest, False


@contextmanager
def opened(path: Path, limit: int) -> Iterator[int]:
    """A descriptor to read `path` by. RecordError unless it is a regular file of at most `limit`
    bytes; OSError as from `open`.
    """
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        raise RecordError(path.name, "is a symbolic link", "put the file itself there")
    if not stat.S_ISREG(mode):
        raise RecordError(path.name, "is not a regular file", "restore the file")
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise RecordError(path.name, "is not a regular file", "restore the file")
        if status.st_size > limit:
            raise RecordTooLarge(
                path.name,
                f"has {status.st_size} bytes, at most {limit} are read",
                "restore the file",
            )
        yield fd
    finally:
        os.close(fd)


def parsed(data: bytes) -> Any:
    """The JSON value of `data`; ValueError if it is not JSON or nested too deeply for a record."""
    try:
        return json.loads(data.decode())
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _read(fd: int, limit: int) -> bytes:
    """Read to the end, which another process may be moving, but never past `limit`."""
    data = bytearray()
    while len(data) < limit and (piece := os.read(fd, min(_PIECE, limit - len(data)))):
        data += piece
    return bytes(data)
