"""A back end that writes down every call that changes something, in order, before it passes the call on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ecrl_cli.storage.fs import Buffer, PosixFs


@dataclass(frozen=True)
class Call:
    """One mutating call: its name, the path it concerns (or the source of a rename), and what else matters."""

    name: str
    path: Path
    target: str = ""
    size: int = 0


class RecordingFs(PosixFs):
    """`calls` is the log; opening for reading, reading and listing are not in it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def mkdir(self, path: Path) -> None:
        self.calls.append(Call("mkdir", path))
        super().mkdir(path)

    def open(self, path: Path, flags: int) -> int:
        if flags & os.O_CREAT:
            self.calls.append(Call("create", path))
        return super().open(path, flags)

    def write(self, fd: int, data: Buffer) -> int:
        written = super().write(fd, data)
        self.calls.append(Call("write", self._path(fd), size=written))
        return written

    def fsync(self, fd: int) -> None:
        self.calls.append(Call("fsync", self._path(fd)))
        super().fsync(fd)

    def fsyncdir(self, path: Path) -> None:
        self.calls.append(Call("fsyncdir", path))
        super().fsyncdir(path)

    def rename(self, source: Path, target: Path, *, replace: bool) -> None:
        self.calls.append(Call("rename", source, target=str(target)))
        super().rename(source, target, replace=replace)

    def symlink(self, target: str, path: Path) -> None:
        self.calls.append(Call("symlink", path, target=target))
        super().symlink(target, path)

    def unlink(self, path: Path) -> None:
        self.calls.append(Call("unlink", path))
        super().unlink(path)

    def rmdir(self, path: Path) -> None:
        self.calls.append(Call("rmdir", path))
        super().rmdir(path)
