"""The file-system interface of the checkpoint store: a few calls on raw file descriptors; every
error is a StorageError with its errno.

The store uses nothing else, so that a test or a study can record the calls, fail the n-th one, or
keep the files in memory. Rules: `close` syncs nothing; data and names are separate (`fsync` makes
bytes durable, `fsyncdir` names); nothing is retried (Python itself repeats a call that a signal
interrupted), least of all a failed sync: the data may be lost.
"""

# ruff: noqa: PTH102, PTH106, PTH108, PTH208, PTH211
from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from ecrl_cli.errors import StorageError
from ecrl_cli.storage.durable import FOLDER as FOLDER
from ecrl_cli.storage.durable import rename_new, rename_over, sync, sync_directory

CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
DIRECT = getattr(os, "O_DIRECT", 0)

Buffer = bytes | bytearray | memoryview


class Fs(Protocol):
    """The interface of a back end. Descriptors are integers that are valid in that back end
    only.
    """

    def mkdir(self, path: Path) -> None: ...
    def open(self, path: Path, flags: int) -> int: ...
    def open_at(self, folder: int, name: str, flags: int) -> int: ...
    def set_direct(self, fd: int, on: bool) -> bool:
        """Switches direct I/O for `fd`; returns False where the file system does not support it."""

    def write(self, fd: int, data: Buffer) -> int: ...
    def read_at(self, fd: int, buffer: memoryview, offset: int) -> int: ...
    def fsync(self, fd: int) -> None: ...
    def fsyncdir(self, path: Path) -> None: ...
    def close(self, fd: int) -> None: ...
    def rename(self, source: Path, target: Path, *, replace: bool) -> None:
        """Renames atomically. Without `replace`, EEXIST where `target` exists, of whatever type."""

    def symlink(self, target: str, path: Path) -> None: ...
    def unlink(self, path: Path) -> None: ...
    def rmdir(self, path: Path) -> None: ...
    def listdir(self, path: Path) -> list[str]:
        """The names in `path`, sorted."""

    def stat(self, path: Path) -> os.stat_result:
        """Like lstat: a symlink is not followed."""

    def fstat(self, fd: int) -> os.stat_result: ...


class PosixFs:
    """The real file system."""

    def __init__(self) -> None:
        self._paths: dict[int, Path] = {}

    def mkdir(self, path: Path) -> None:
        with _typed("mkdir", path):
            os.mkdir(path)

    def open(self, path: Path, flags: int) -> int:
        with _typed("open", path):
            return self._opened(os.open(path, flags, 0o666), path)

    def open_at(self, folder: int, name: str, flags: int) -> int:
        path = self._path(folder) / name
        with _typed("open", path):
            return self._opened(os.open(name, flags, 0o666, dir_fd=folder), path)

    def set_direct(self, fd: int, on: bool) -> bool:
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        try:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags | DIRECT if on else flags & ~DIRECT)
        except OSError:
            return False
        return bool(DIRECT) or not on

    def write(self, fd: int, data: Buffer) -> int:
        with _typed("write", self._path(fd), memoryview(data).nbytes):
            return os.write(fd, data)

    def read_at(self, fd: int, buffer: memoryview, offset: int) -> int:
        with _typed("read", self._path(fd)):
            return os.preadv(fd, [buffer], offset)

    def fsync(self, fd: int) -> None:
        with _typed("fsync", self._path(fd)):
            sync(fd)

    def fsyncdir(self, path: Path) -> None:
        with _typed("fsync of the directory", path):
            sync_directory(path)

    def close(self, fd: int) -> None:
        path = self._paths.pop(fd, Path("?"))
        with _typed("close", path):
            os.close(fd)

    def rename(self, source: Path, target: Path, *, replace: bool) -> None:
        with _typed("rename", target):
            (rename_over if replace else rename_new)(source, target)

    def symlink(self, target: str, path: Path) -> None:
        with _typed("symlink", path):
            os.symlink(target, path)

    def unlink(self, path: Path) -> None:
        with _typed("unlink", path):
            os.unlink(path)

    def rmdir(self, path: Path) -> None:
        with _typed("rmdir", path):
            os.rmdir(path)

    def listdir(self, path: Path) -> list[str]:
        with _typed("list", path):
            return sorted(os.listdir(path))

    def stat(self, path: Path) -> os.stat_result:
        with _typed("stat", path):
            return os.lstat(path)

    def fstat(self, fd: int) -> os.stat_result:
        with _typed("stat", self._path(fd)):
            return os.fstat(fd)

    def _opened(self, fd: int, path: Path) -> int:
        self._paths[fd] = path
        return fd

    def _path(self, fd: int) -> Path:
        return self._paths.get(fd, Path("?"))


@contextmanager
def _typed(call: str, path: Path, needed: int | None = None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError.of(call, path, error, needed) from error
    except ValueError as error:  # a NUL byte or a surrogate in a name
        raise StorageError.of(call, repr(str(path)), OSError(errno.EINVAL, str(error))) from error
