"""Nothing is written through a link: a folder that somebody else prepared could send what is written there anywhere."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from ecrl_cli.errors import RunDirectoryError, shown

MOST_DEEP = 8  # folders below one another; ours are three
_OF_SUBMITIT = ".submitit"  # submitit links its batch scripts there, and nobody else writes there


def refuse_links(root: Path, names: Collection[str]) -> None:
    """RunDirectoryError where one of `names` in `root`, or anything in a folder of these, is a symbolic link. `root` itself may be reached by one."""
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
