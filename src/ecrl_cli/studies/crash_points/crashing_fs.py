"""A file system that names every modifying call and can kill its process before one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ecrl_cli.storage.fs import Fs, PosixFs
from ecrl_cli.studies.mutants.fs import RootedFs

T = TypeVar("T")
_CHANGES = ("mkdir", "write", "fsync", "fsyncdir", "rename", "symlink", "unlink", "rmdir")


class CrashingFs(RootedFs):
    """`calls`: names of the modifying calls since it was `armed`. The process is killed before call number `last` (never: -1)."""

    def __init__(self, root: Path, last: int = -1, fs: Fs | None = None) -> None:
        super().__init__(fs or PosixFs(), root)
        self.last, self.armed, self.calls = last, False, list[str]()

    def around(self, call: str, path: Path, act: Callable[[], T]) -> T:
        if call in _CHANGES:
            self._come(call, path)
        return act()

    def open(self, path: Path, flags: int) -> int:
        if flags & os.O_CREAT:
            self._come("create", path)
        return super().open(path, flags)

    def _come(self, call: str, path: Path) -> None:
        if not self.armed:
            return
        if len(self.calls) == self.last:
            os.kill(os.getpid(), signal.SIGKILL)
        self.calls.append(f"{call} {path.name}")
