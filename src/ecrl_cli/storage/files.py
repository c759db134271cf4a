"""Small files written whole: records that must never be seen half written."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

from ecrl_cli.storage.durable import rename_over, sync
from ecrl_cli.storage.durable import sync_directory as _sync_directory


def sync_directory(path: Path) -> None:
    """Make the names in `path` durable; `path` may be a link to the folder."""
    _sync_directory(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def write_whole(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace `path` by `data` in one rename: a reader sees the old bytes or the new, never a mixture.

    With `durable` the bytes and the name survive a power loss once this returns.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        try:
            _write_all(fd, data)
            if durable:
                sync(fd)
        finally:
            os.close(fd)
        rename_over(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """`value` as indented JSON, written whole. A loss that is not finite stays what it is (NaN, as Python writes and reads it)."""
    text = json.dumps(value, indent=2)
    write_whole(path, (text + "\n").encode(), durable=durable)


def create_once(path: Path, data: bytes) -> bool:
    """Create `path` durably, or return False where it exists already: a claim that holds across processes."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        return False
    try:
        try:
            _write_all(fd, data)
            sync(fd)
        finally:
            os.close(fd)
    except OSError:
        path.unlink(missing_ok=True)  # an empty claim would hold, and say nothing
        raise
    sync_directory(path.parent)
    return True


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
