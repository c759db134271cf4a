"""Refuses symbolic links in run directories: a prepared link could redirect what is written to any place."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from ecrl_cli.errors import RunDirectoryError, shown

MOST_DEEP = 8  # levels of folders; a run directory has three
_OF_SUBMITIT = ".submitit"  # submitit keeps symlinks to its batch scripts there; ECRL writes nothing there


def refuse_links(root: Path, names: Collection[str]) -> None:
    """RunDirectoryError where one of `names` in `root`, or anything below one, is a symbolic link. `root` itself may be a link."""
    for name in names:
        _refuse(root / name, root, MOST_DEEP)


def _refuse(path: Path, root: Path, deep: int) -> None:
    if path.is_symlink():
        where = shown(str(path.relative_to(root)))
        raise RunDirectoryError(str(root), f"{where} is a symbolic link: what is written there would lie elsewhere", "remove the link")
    if deep and path.is_dir() and path.name != _OF_SUBMITIT:
        with os.scandir(path) as entries:
            below = [path / entry.name for entry in entries if entry.is_symlink() or entry.is_dir(follow_symlinks=False)]
        for each in sorted(below):
            _refuse(each, root, deep - 1)
