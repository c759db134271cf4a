"""File systems of the studies that act at a call: they run another process's step before it, or
kill this process before a change.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ecrl_cli.storage.fs import Fs, PosixFs
from ecrl_cli.storage.fs_wrapper import FsWrapper

T = TypeVar("T")
_CHANGES = ("mkdir", "write", "fsync", "fsyncdir", "rename", "symlink", "unlink", "rmdir")


class Unsynced(FsWrapper):
    """The real file system without syncs: without a power loss nothing is lost, and the order of
    the other calls is unchanged.
    """

    def __init__(self) -> None:
        super().__init__(PosixFs())

    def fsync(self, fd: int) -> None:
        """Nothing is lost."""

    def fsyncdir(self, path: Path) -> None:
        """Nothing is lost."""


class InterleavingFs(FsWrapper):
    """Lets `act` run once, before the call numbered `at`. `calls`: the names of those made so
    far.
    """

    def __init__(self, fs: Fs, at: int = -1, act: Callable[[], None] = lambda: None) -> None:
        super().__init__(fs)
        self._at, self._act, self._lock = at, act, threading.Lock()
        self.calls: list[str] = []

    def around(self, call: str, path: Path, act: Callable[[], T]) -> T:
        with self._lock:
            number = len(self.calls)
            self.calls.append(call)
        if number == self._at:
            self._act()
        return act()


class CrashingFs(FsWrapper):
    """`calls`: names of the modifying calls since it was `armed`. The process is killed before call
    number `last` (never: -1).
    """

    def __init__(self, last: int = -1, fs: Fs | None = None) -> None:
        super().__init__(fs or PosixFs())
        self.last, self.armed, self.calls = last, False, list[str]()

    def around(self, call: str, path: Path, act: Callable[[], T]) -> T:
        if call in _CHANGES:
            self.come(call, path)
        return act()

    def open(self, path: Path, flags: int) -> int:
        if flags & os.O_CREAT:
            self.come("create", path)
        return super().open(path, flags)

    def come(self, call: str, path: Path) -> None:
        """Comes before each modifying call."""
        if not self.armed:
            return
        if len(self.calls) == self.last:
            os.kill(os.getpid(), signal.SIGKILL)
        self.calls.append(f"{call} {path.name}")
