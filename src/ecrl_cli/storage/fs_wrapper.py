"""Back ends that wrap another one: the base class that passes every call on, one that sends
heartbeats, and one with a limited bandwidth.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ecrl_cli.storage.fs import Buffer, Fs, PosixFs

T = TypeVar("T")
PIECE = 2**20  # bytes per throttled write call: small enough for an even rate


class FsWrapper:
    """Passes every call on to `behind`. Override a call to change it, or `around` to act on all.
    `open_files`: paths of the open descriptors.
    """

    def __init__(self, behind: Fs) -> None:
        self.behind = behind
        self.open_files: dict[int, Path] = {}

    def around(self, call: str, path: Path, act: Callable[[], T]) -> T:
        """Every call passes through here: its name, its path (of a rename the target), and the
        function that performs it.
        """
        return act()

    def path_of(self, fd: int) -> Path:
        return self.open_files.get(fd, Path("?"))

    def mkdir(self, path: Path) -> None:
        self.around("mkdir", path, lambda: self.behind.mkdir(path))

    def open(self, path: Path, flags: int) -> int:
        fd = self.around("open", path, lambda: self.behind.open(path, flags))
        self.open_files[fd] = path
        return fd

    def open_at(self, folder: int, name: str, flags: int) -> int:
        path = self.path_of(folder) / name
        fd = self.around("open_at", path, lambda: self.behind.open_at(folder, name, flags))
        self.open_files[fd] = path
        return fd

    def set_direct(self, fd: int, on: bool) -> bool:
        return self.around("set_direct", self.path_of(fd), lambda: self.behind.set_direct(fd, on))

    def write(self, fd: int, data: Buffer) -> int:
        return self.around("write", self.path_of(fd), lambda: self.behind.write(fd, data))

    def read_at(self, fd: int, buffer: memoryview, offset: int) -> int:
        return self.around(
            "read_at", self.path_of(fd), lambda: self.behind.read_at(fd, buffer, offset)
        )

    def fsync(self, fd: int) -> None:
        self.around("fsync", self.path_of(fd), lambda: self.behind.fsync(fd))

    def fsyncdir(self, path: Path) -> None:
        self.around("fsyncdir", path, lambda: self.behind.fsyncdir(path))

    def close(self, fd: int) -> None:
        path = self.open_files.pop(fd, Path("?"))
        self.around("close", path, lambda: self.behind.close(fd))

    def rename(self, source: Path, target: Path, *, replace: bool) -> None:
        self.around("rename", target, lambda: self.behind.rename(source, target, replace=replace))

    def symlink(self, target: str, path: Path) -> None:
        self.around("symlink", path, lambda: self.behind.symlink(target, path))

    def unlink(self, path: Path) -> None:
        self.around("unlink", path, lambda: self.behind.unlink(path))

    def rmdir(self, path: Path) -> None:
        self.around("rmdir", path, lambda: self.behind.rmdir(path))

    def listdir(self, path: Path) -> list[str]:
        return self.around("listdir", path, lambda: self.behind.listdir(path))

    def stat(self, path: Path) -> os.stat_result:
        return self.around("stat", path, lambda: self.behind.stat(path))

    def fstat(self, fd: int) -> os.stat_result:
        return self.around("fstat", self.path_of(fd), lambda: self.behind.fstat(fd))


class HeartbeatFs(FsWrapper):
    """Calls `beat` before and after each call (a write, a sync, ...)."""

    def __init__(self, behind: Fs, beat: Callable[[], None]) -> None:
        super().__init__(behind)
        self._beat = beat

    def around(self, call: str, path: Path, act: Callable[[], T]) -> T:
        self._beat()
        result = act()
        self._beat()
        return result


class ThrottledFs(FsWrapper):
    """Writes at most `bytes_per_s`, over all files and threads; reads, syncs and name operations
    are not throttled.
    """

    def __init__(self, bytes_per_s: float) -> None:
        super().__init__(PosixFs())
        self._rate, self._free_at, self._lock = bytes_per_s, 0.0, threading.Lock()

    def write(self, fd: int, data: Buffer) -> int:
        written = super().write(fd, memoryview(data).cast("B")[:PIECE])
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic()) + written / self._rate
            free_at = self._free_at
        time.sleep(max(0.0, free_at - time.monotonic()))
        return written
