"""Records from a folder that somebody else may have prepared: plain files only, never through a link, never more than a cap."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from ecrl_cli.errors import RecordError

MAX_DOCUMENT = 64 * 2**20
MAX_JOURNAL = 2**30
_PIECE = 2**20


def read_whole(path: Path, limit: int = MAX_DOCUMENT) -> bytes:
    """The bytes of `path`. RecordError unless it is a plain file of at most `limit` bytes, which is seen before any is read; OSError as `open`."""
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
        return _read(fd, limit)
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
