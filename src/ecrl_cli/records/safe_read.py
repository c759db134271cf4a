"""Records from a folder that somebody else may have prepared: plain files only, never through a link, never more than a cap."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ecrl_cli.errors import RecordError

MAX_DOCUMENT = 16 * 2**20  # of JSON: what takes a second to parse, and some 400 MB at the worst
MAX_JOURNAL = 2**30
MAX_LINE = 4 * 2**20
_PIECE = 2**20


def read_whole(path: Path, limit: int = MAX_DOCUMENT) -> bytes:
    """The bytes of `path`. RecordError unless it is a plain file of at most `limit` bytes, which is seen before any is read; OSError as `open`."""
    with _opened(path, limit) as fd:
        return _read(fd, limit)


def read_lines(path: Path, limit: int = MAX_JOURNAL) -> Iterator[tuple[bytes, bool]]:
    """Line by line, without its newline, and whether there was one: the last may be torn. RecordError as `read_whole`, and for a line without end."""
    with _opened(path, limit) as fd:
        rest, left = b"", limit
        while left > 0 and (piece := os.read(fd, min(_PIECE, left))):
            left -= len(piece)
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                yield line, True
            if len(rest) > MAX_LINE:
                raise RecordError(path.name, f"has a line of more than {MAX_LINE} bytes", "restore the file")
        if rest:
            yield rest, False


@contextmanager
def _opened(path: Path, limit: int) -> Iterator[int]:
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
            raise RecordError(path.name, f"has {status.st_size} bytes, at most {limit} are read", "restore the file")
        yield fd
    finally:
        os.close(fd)


def parsed(data: bytes) -> Any:
    """The JSON value of `data`; ValueError where it is none, or one so deep that no record can be meant."""
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _read(fd: int, limit: int) -> bytes:
    """To the end, which another process may be moving, but never past `limit`."""
    data = bytearray()
    while len(data) < limit and (piece := os.read(fd, min(_PIECE, limit - len(data)))):
        data += piece
    return bytes(data)
