"""Small files written whole: records that must never be seen half written."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ecrl_cli.storage.durable import rename_new, rename_over, sync
from ecrl_cli.storage.durable import sync_directory as _sync_directory


def sync_directory(path: Path) -> None:
    """Makes the names in `path` durable; `path` may be a symlink to the directory."""
    _sync_directory(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def write_whole(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replaces `path` by `data` with one rename: a reader sees the old bytes or the new, never a
    mixture.

    With `durable` the bytes and the name survive a power loss once this returns.
    """
    _place(path, data, durable, rename_over)


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """Writes `value` as indented JSON with `write_whole`. Non-finite numbers are written as Python
    does (NaN), not rejected.
    """
    text = json.dumps(value, indent=2)
    write_whole(path, (text + "\n").encode(), durable=durable)


def create_once(path: Path, data: bytes) -> bool:
    """Creates `path` durably with all of `data`, or returns False where it exists: a claim that
    holds across processes (as far as `rename_new` does).

    A process killed on the way has claimed nothing: the name never exists without its content.
    """
    try:
        _place(path, data, True, rename_new)
    except FileExistsError:
        return False
    return True


def _place(path: Path, data: bytes, durable: bool, rename: Callable[[Path, Path], None]) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
    try:
        try:
            try:
                _write_all(fd, data)
                if durable:
                    sync(fd)
            except OSError as error:  # the system names no file of a descriptor
                error.filename = error.filename or str(path)
                raise
        finally:
            os.close(fd)
        rename(temporary, path)
    except BaseException:  # Ctrl-C too: nobody would remove it later
        with suppress(OSError):  # what is raised says more
            temporary.unlink()
        raise
    if durable:
        sync_directory(path.parent)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
