"""A back end whose n-th call fails, once or from then on; every other call is passed on to the
wrapped back end.

A fault leaves what Linux leaves: a failed call changes nothing, a failed close has closed, and
after a failed sync the pages are clean and their data may be lost (a wrapped ModelFs drops it).
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ecrl_cli.errors import StorageError
from ecrl_cli.storage.fs import Buffer, Fs
from ecrl_cli.storage.fs_wrapper import FsWrapper
from ecrl_cli.storage.memory_fs import ModelFs

T = TypeVar("T")

# The calls that a fault may be limited to. `fsyncdir` opens the directory and syncs it.
SCOPES: dict[str, tuple[str, ...]] = {
    "any": tuple(
        "mkdir create open write read fsync fsyncdir close rename symlink unlink rmdir list"
        " stat".split()
    ),
    "write": ("write",),
    "sync": ("fsync", "fsyncdir"),
    "open": ("create", "open", "fsyncdir", "list"),
    "read": ("open", "read", "list", "stat"),
    "change": ("mkdir", "create", "rename", "symlink", "unlink", "rmdir"),
    "close": ("close",),
}
_OWN_WAYS = ("open", "open_at", "set_direct", "write", "fsync", "close")
SHORT, ZERO = "short write", "write of 0"


class TooManyCalls(RuntimeError):
    """Raised when the call limit is exceeded: the operation does not terminate."""


@dataclass(frozen=True)
class Fault:
    """`kind`: the name of an errno, SHORT or ZERO. The `at`-th call (from 1) in `scope` fails with
    it; with `sticky`, all later ones too.
    """

    kind: str
    at: int
    sticky: bool = False
    scope: str = "any"


@dataclass(frozen=True)
class InjectedError:
    """A call that failed by injection; `written`: its path was opened for creation through this
    back end.
    """

    call: str
    path: Path
    written: bool = False


# Names of calls in the scopes, where they differ.
_CALLS = {"read_at": "read", "listdir": "list", "fstat": "stat"}


class FaultyFs(FsWrapper):
    """`fault` None: nothing fails. `calls` counts the calls in all scopes; `injected` lists those
    that failed.
    """

    def __init__(self, behind: Fs, limit: int = 100_000) -> None:
        super().__init__(behind)
        self.limit = limit
        self._lock = threading.Lock()  # the integrity check reads several files at once
        self.arm(None)

    def arm(self, fault: Fault | None) -> None:
        """Sets `fault` and resets the counters."""
        self.fault, self.calls, self._in_scope = fault, 0, 0
        self.injected: list[InjectedError] = []
        self._written: set[Path] = set()

    def around(self, call: str, path: Path, act: Callable[[], T]) -> T:
        """Passes the call on, or fails it. Calls in _OWN_WAYS are overridden and fail in their own
        ways.
        """
        if call not in _OWN_WAYS:
            self._pass(_CALLS.get(call, call), path)
        return act()

    def open(self, path: Path, flags: int) -> int:
        self._pass("create" if flags & os.O_CREAT else "open", path)
        if flags & os.O_CREAT:
            self._written.add(path)
        return super().open(path, flags)

    def open_at(self, folder: int, name: str, flags: int) -> int:
        self._pass("create" if flags & os.O_CREAT else "open", self.path_of(folder) / name)
        return super().open_at(folder, name, flags)

    def write(self, fd: int, data: Buffer) -> int:
        kind = self._meets("write", self.path_of(fd))
        if kind == ZERO:
            return 0
        if kind == SHORT:
            return super().write(fd, memoryview(data)[: max(1, len(data) // 2)])
        if kind:
            raise self._error("write", self.path_of(fd), kind)
        return super().write(fd, data)

    def fsync(self, fd: int) -> None:
        path = self.path_of(fd)
        if kind := self._meets("fsync", path):
            error = self._error("fsync", path, kind)
            if isinstance(self.behind, ModelFs):
                self.behind.refuse_sync = error.errno
                with suppress(StorageError):
                    self.behind.fsync(fd)
            raise error
        super().fsync(fd)

    def close(self, fd: int) -> None:
        path = self.path_of(fd)
        kind = self._meets("close", path)
        super().close(fd)
        if kind:
            raise self._error("close", path, kind)

    def _pass(self, call: str, path: Path) -> None:
        if kind := self._meets(call, path):
            raise self._error(call, path, kind)

    def _meets(self, call: str, path: Path) -> str:
        """Counts the call; returns the kind of fault to inject, or ""."""
        with self._lock:
            return self._count(call, path)

    def _count(self, call: str, path: Path) -> str:
        self.calls += 1
        if self.calls > self.limit:
            raise TooManyCalls(f"{self.calls} calls, the last one {call} of {path}")
        if self.fault is None or call not in SCOPES[self.fault.scope]:
            return ""
        self._in_scope += 1
        if self._in_scope < self.fault.at or (
            self._in_scope > self.fault.at and not self.fault.sticky
        ):
            return ""
        self.injected.append(InjectedError(call, path, path in self._written))
        return self.fault.kind

    def _error(self, call: str, path: Path, kind: str) -> StorageError:
        number = int(getattr(errno, kind))
        return StorageError.of(call, path, OSError(number, os.strerror(number)))
