"""A back end that logs every call that changes something, in order, before passing it on."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ecrl_cli.storage.fs import Buffer, Fs, PosixFs
from ecrl_cli.storage.fs_wrapper import FsWrapper

T = TypeVar("T")


@dataclass(frozen=True)
class Call:
    """One mutating call: its name, its path (of a rename the source), the target, and the bytes
    written.
    """

    name: str
    path: Path
    target: str = ""
    size: int = 0


_LOGGED = ("mkdir", "fsync", "fsyncdir", "unlink", "rmdir")


class RecordingFs(FsWrapper):
    """`calls` is the log; opening for reading, reading and listing are not logged."""

    def __init__(self, behind: Fs | None = None) -> None:
        super().__init__(behind or PosixFs())
        self.calls: list[Call] = []

    def around(self, call: str, path: Path, act: Callable[[], T]) -> T:
        if call in _LOGGED:
            self.calls.append(Call(call, path))
        return act()

    def open(self, path: Path, flags: int) -> int:
        if flags & os.O_CREAT:
            self.calls.append(Call("create", path))
        return super().open(path, flags)

    def write(self, fd: int, data: Buffer) -> int:
        written = super().write(fd, data)
        self.calls.append(Call("write", self.path_of(fd), size=written))
        return written

    def rename(self, source: Path, target: Path, *, replace: bool) -> None:
        self.calls.append(Call("rename", source, target=str(target)))
        super().rename(source, target, replace=replace)

    def symlink(self, target: str, path: Path) -> None:
        self.calls.append(Call("symlink", path, target=target))
        super().symlink(target, path)
