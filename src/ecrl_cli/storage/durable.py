"""The only calls of fsync and rename in ECRL. Raise OSError; nothing is retried, least of all a
failed sync: the data may be lost.
"""

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
    """Makes the bytes of `fd` durable, not its name."""
    os.fsync(fd)


def sync_directory(path: Path, flags: int = FOLDER) -> None:
    """Makes the names in `path` durable."""
    fd = os.open(path, flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def rename_over(source: Path, target: Path) -> None:
    """Renames atomically; replaces an existing `target`."""
    os.replace(source, target)


def rename_new(source: Path, target: Path) -> None:
    """Renames without overwriting. On file systems without RENAME_NOREPLACE (EINVAL) it checks
    first, which is safe with one writer only.
    """
    call = getattr(_LIBC, "renameat2", None)
    if call is not None:
        if (
            call(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), _RENAME_NOREPLACE)
            == 0
        ):
            return
        number = ctypes.get_errno()
        if number not in (errno.EINVAL, errno.ENOSYS):
            raise OSError(number, os.strerror(number))
    if os.path.lexists(target):
        raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
    os.rename(source, target)
