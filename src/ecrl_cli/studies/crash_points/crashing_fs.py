"""A back end that names every call that changes something, and at which its process may die."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from ecrl_cli.storage.fs import Buffer, Fs, PosixFs
from ecrl_cli.studies.mutants.fs import ThroughFs


class CrashingFs(ThroughFs):
    """`calls`: the changing calls since it was `armed`, by name. The process dies before call number `last` (never: -1)."""

    def __init__(self, root: Path, last: int = -1, fs: Fs | None = None) -> None:
        super().__init__(fs or PosixFs(), root)
        self.last, self.armed, self.calls = last, False, list[str]()

    def mkdir(self, path: Path) -> None:
        self._come("mkdir", path)
        super().mkdir(path)

    def open(self, path: Path, flags: int) -> int:
        if flags & os.O_CREAT:
            self._come("create", path)
        return super().open(path, flags)

    def write(self, fd: int, data: Buffer) -> int:
        self._come("write", self.paths[fd])
        return super().write(fd, data)

    def fsync(self, fd: int) -> None:
        self._come("fsync", self.paths[fd])
        super().fsync(fd)

    def fsyncdir(self, path: Path) -> None:
        self._come("fsyncdir", path)
        super().fsyncdir(path)

    def rename(self, source: Path, target: Path, *, replace: bool) -> None:
        self._come("rename", target)
        super().rename(source, target, replace=replace)

    def symlink(self, target: str, path: Path) -> None:
        self._come("symlink", path)
        super().symlink(target, path)

    def unlink(self, path: Path) -> None:
        self._come("unlink", path)
        super().unlink(path)

    def rmdir(self, path: Path) -> None:
        self._come("rmdir", path)
        super().rmdir(path)

    def _come(self, call: str, path: Path) -> None:
        if not self.armed:
            return
        if len(self.calls) == self.last:
            os.kill(os.getpid(), signal.SIGKILL)
        self.calls.append(f"{call} {path.name}")
