"""The only fsync and the only rename in the house. Raises OSError; nothing is retried, least of all a failed sync: the data may be gone."""

# ruff: noqa: PTH104
from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIBC = ctypes.CDLL(None, use_errno=True)
_AT_FDCWD, _RENAME_NOREPLACE = -100, 1


def sync(fd: int) -> None:
    """Make the bytes of `fd` durable; says nothing about its name."""
    os.fsync(fd)


def sync_directory(path: Path, flags: int = FOLDER) -> None:
    """Make the names in `path` durable."""
    fd = os.open(path, flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def rename_over(source: Path, target: Path) -> None:
    """Atomic; what `target` named before is gone."""
    os.replace(source, target)


def rename_new(source: Path, target: Path) -> None:
    """Rename without overwriting. Where the file system cannot (EINVAL), look first: then it holds for one writer at a time, as the store has."""
    call = getattr(_LIBC, "renameat2", None)
    if call is not None:
        if call(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), _RENAME_NOREPLACE) == 0:
            return
        number = ctypes.get_errno()
        if number not in (errno.EINVAL, errno.ENOSYS):
            raise OSError(number, os.strerror(number))
    if os.path.lexists(target):
        raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
    os.rename(source, target)
