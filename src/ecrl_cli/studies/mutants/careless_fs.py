"""Planted bugs of a careless store: each sits between the store and the failing disk. The study
must find all.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ecrl_cli.checkpoint.format.names import STAGE_PREFIX
from ecrl_cli.errors import StorageError
from ecrl_cli.storage.fault_injecting_fs import SHORT
from ecrl_cli.storage.fs import Buffer, Fs
from ecrl_cli.storage.fs_wrapper import FsWrapper


class IgnoresShortWrites(FsWrapper):
    def write(self, fd: int, data: Buffer) -> int:
        self.behind.write(fd, data)
        return len(data)


class RetriesFsync(FsWrapper):
    """Retries a failed fsync: the second one succeeds because the pages are clean, but their data
    is lost.
    """

    def fsync(self, fd: int) -> None:
        try:
            self.behind.fsync(fd)
        except StorageError:
            self.behind.fsync(fd)


class IgnoresFsync(FsWrapper):
    def fsync(self, fd: int) -> None:
        with suppress(StorageError):
            self.behind.fsync(fd)


class IgnoresFailedDirsync(FsWrapper):
    def fsyncdir(self, path: Path) -> None:
        with suppress(StorageError):
            self.behind.fsyncdir(path)


class IgnoresFailedClose(FsWrapper):
    """Ignores an error of close, where some file systems first report lost data."""

    def close(self, fd: int) -> None:
        with suppress(StorageError):
            self.behind.close(fd)


class SwallowsEnospc(FsWrapper):
    def write(self, fd: int, data: Buffer) -> int:
        try:
            return self.behind.write(fd, data)
        except StorageError as error:
            if error.errno != errno.ENOSPC:
                raise
            return len(data)


class ForgetsUndo(FsWrapper):
    """Removes nothing whose path contains `_keep`."""

    _keep = STAGE_PREFIX

    def unlink(self, path: Path) -> None:
        if self._keep not in str(path):
            self.behind.unlink(path)

    def rmdir(self, path: Path) -> None:
        if self._keep not in str(path):
            self.behind.rmdir(path)


class ForgetsUndoAfterRename(ForgetsUndo):
    """Does not undo a stage once a rename of it was tried."""

    _keep = "\0"  # matches no path at first

    def rename(self, source: Path, target: Path, *, replace: bool) -> None:
        try:
            self.behind.rename(source, target, replace=replace)
        except StorageError:
            self._keep = str(source)
            raise


class RetriesForEver(FsWrapper):
    def write(self, fd: int, data: Buffer) -> int:
        while True:
            try:
                return self.behind.write(fd, data)
            except StorageError as error:
                if error.errno != errno.EINTR:
                    raise


class LeaksDescriptors(FsWrapper):
    """Never closes descriptors after a failure."""

    def __init__(self, behind: Fs) -> None:
        super().__init__(behind)
        self._failed = set[int]()

    def write(self, fd: int, data: Buffer) -> int:
        try:
            return self.behind.write(fd, data)
        except StorageError:
            self._failed.add(fd)
            raise

    def close(self, fd: int) -> None:
        if fd not in self._failed:
            self.behind.close(fd)


class NamesNothing(FsWrapper):
    def rename(self, source: Path, target: Path, *, replace: bool) -> None:
        try:
            self.behind.rename(source, target, replace=replace)
        except StorageError:
            raise StorageError("storage", "something went wrong") from None


class RaisesWhatItGets(FsWrapper):
    def mkdir(self, path: Path) -> None:
        try:
            self.behind.mkdir(path)
        except StorageError as error:
            raise OSError(error.errno, "refused") from None


class ClearsTheWayFirst(FsWrapper):
    """Removes the newest checkpoint before the next one is durable."""

    def mkdir(self, path: Path) -> None:
        for folder in [
            name for name in self.behind.listdir(path.parent) if name.startswith("step_")
        ][-1:]:
            for name in self.behind.listdir(path.parent / folder):
                self.behind.unlink(path.parent / folder / name)
            self.behind.rmdir(path.parent / folder)
        self.behind.mkdir(path)


# By name: the bug, and scope and kind of the fault that is to expose it.
MUTANTS: dict[str, tuple[Callable[[Fs], Fs], str, str]] = {
    "ignores short writes": (IgnoresShortWrites, "write", SHORT),
    "retries a failed fsync": (RetriesFsync, "sync", "EIO"),
    "ignores a failed fsync": (IgnoresFsync, "sync", "ENOSPC"),
    "ignores a failed sync of a directory": (IgnoresFailedDirsync, "sync", "EIO"),
    "ignores a failed close": (IgnoresFailedClose, "close", "EIO"),
    "swallows ENOSPC": (SwallowsEnospc, "write", "ENOSPC"),
    "forgets to give space back": (ForgetsUndo, "write", "EIO"),
    "forgets to after a failed rename": (ForgetsUndoAfterRename, "change", "EIO"),
    "retries EINTR for ever": (RetriesForEver, "write", "EINTR"),
    "leaks the descriptor of a failed write": (LeaksDescriptors, "write", "EDQUOT"),
    "names neither call nor errno": (NamesNothing, "change", "EROFS"),
    "lets an OSError through": (RaisesWhatItGets, "change", "ENOSPC"),
    "removes the newest before the next is safe": (ClearsTheWayFirst, "change", "ENOSPC"),
}
