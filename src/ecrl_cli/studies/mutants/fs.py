"""Planted bugs of the kind "sync": file systems that forward every call except certain syncs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ecrl_cli.checkpoint.format.names import STAGE_PREFIX, STEP_NAME
from ecrl_cli.storage.fs import Fs
from ecrl_cli.storage.fs_wrapper import FsWrapper


class RootedFs(FsWrapper):
    """Base of file systems that change a few calls. `root`: the checkpoints folder of the store on it."""

    def __init__(self, fs: Fs, root: Path) -> None:
        super().__init__(fs)
        self.root = root


MakeFs = Callable[[Fs, Path], Fs]


def forgets_files(forgotten: Callable[[str], bool]) -> MakeFs:
    """`fsync` does nothing for a file in or beside a stage whose name is `forgotten`."""

    class Forgetful(RootedFs):
        def fsync(self, fd: int) -> None:
            if not forgotten(self.open_files[fd].name):
                super().fsync(fd)

    return Forgetful


def forgets_folders(forgotten: Callable[[Path, Path], bool]) -> MakeFs:
    """`fsyncdir` does nothing for a folder that is `forgotten(folder, checkpoints)`."""

    class Forgetful(RootedFs):
        def fsyncdir(self, path: Path) -> None:
            if not forgotten(path, self.root):
                super().fsyncdir(path)

    return Forgetful


class ForgetsTheNewName(RootedFs):
    """The folder sync after a checkpoint's rename does nothing."""

    armed = False

    def rename(self, source: Path, target: Path, *, replace: bool) -> None:
        super().rename(source, target, replace=replace)
        self.armed = self.armed or (STEP_NAME.match(target.name) is not None and source.name.startswith(STAGE_PREFIX))

    def fsyncdir(self, path: Path) -> None:
        if self.armed and path == self.root:
            self.armed = False
        else:
            super().fsyncdir(path)
