"""Planted bugs of the kind "sync": back ends that pass every call on, except a sync that they forget."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ecrl_cli.checkpoint.format.names import STAGE_PREFIX, STEP_NAME
from ecrl_cli.storage.fs import Buffer, Fs


class ThroughFs:
    """Passes every call on. The base of back ends that change a few."""

    def __init__(self, fs: Fs, root: Path) -> None:
        self.fs, self.root = fs, root
        self.paths: dict[int, Path] = {}

    def mkdir(self, path: Path) -> None:
        self.fs.mkdir(path)

    def open(self, path: Path, flags: int) -> int:
        fd = self.fs.open(path, flags)
        self.paths[fd] = path
        return fd

    def open_at(self, folder: int, name: str, flags: int) -> int:
        fd = self.fs.open_at(folder, name, flags)
        self.paths[fd] = self.paths.get(folder, Path("?")) / name
        return fd

    def set_direct(self, fd: int, on: bool) -> bool:
        return self.fs.set_direct(fd, on)

    def write(self, fd: int, data: Buffer) -> int:
        return self.fs.write(fd, data)

    def read_at(self, fd: int, buffer: memoryview, offset: int) -> int:
        return self.fs.read_at(fd, buffer, offset)

    def fsync(self, fd: int) -> None:
        self.fs.fsync(fd)

    def fsyncdir(self, path: Path) -> None:
        self.fs.fsyncdir(path)

    def close(self, fd: int) -> None:
        self.paths.pop(fd, None)
        self.fs.close(fd)

    def rename(self, source: Path, target: Path, *, replace: bool) -> None:
        self.fs.rename(source, target, replace=replace)

    def symlink(self, target: str, path: Path) -> None:
        self.fs.symlink(target, path)

    def unlink(self, path: Path) -> None:
        self.fs.unlink(path)

    def rmdir(self, path: Path) -> None:
        self.fs.rmdir(path)

    def listdir(self, path: Path) -> list[str]:
        return self.fs.listdir(path)

    def stat(self, path: Path) -> os.stat_result:
        return self.fs.stat(path)

    def fstat(self, fd: int) -> os.stat_result:
        return self.fs.fstat(fd)


MakeFs = Callable[[Fs, Path], Fs]


def forgets_files(forgotten: Callable[[str], bool]) -> MakeFs:
    """`fsync` does nothing for a file inside or beside a stage whose name is `forgotten`."""

    class Forgetful(ThroughFs):
        def fsync(self, fd: int) -> None:
            if not forgotten(self.paths[fd].name):
                super().fsync(fd)

    return Forgetful


def forgets_folders(forgotten: Callable[[Path, Path], bool]) -> MakeFs:
    """`fsyncdir` does nothing for a folder that is `forgotten(folder, checkpoints)`."""

    class Forgetful(ThroughFs):
        def fsyncdir(self, path: Path) -> None:
            if not forgotten(path, self.root):
                super().fsyncdir(path)

    return Forgetful


class ForgetsTheNewName(ThroughFs):
    """The sync of the folder that follows a checkpoint's rename does nothing."""

    armed = False

    def rename(self, source: Path, target: Path, *, replace: bool) -> None:
        super().rename(source, target, replace=replace)
        self.armed = self.armed or (STEP_NAME.match(target.name) is not None and source.name.startswith(STAGE_PREFIX))

    def fsyncdir(self, path: Path) -> None:
        if self.armed and path == self.root:
            self.armed = False
        else:
            super().fsyncdir(path)
