"""Resolves the folders given on a command line: a sweep folder stands for all its runs, a
checkpoint for itself.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ecrl_cli.checkpoint.format.names import STEP_NAME
from ecrl_cli.checkpoint.repair.scrub import holds_checkpoints
from ecrl_cli.errors import RunDirectoryError, shown
from ecrl_cli.records.layout import RunLayout


@dataclass(frozen=True)
class Checkpoints:
    """A folder of checkpoints; with `names`, only these. `label`: its name in messages."""

    label: str
    folder: Path
    names: tuple[str, ...] | None = None


def checkpoints_of(run: Path) -> Checkpoints | None:
    """The checkpoints of a run directory; None if it has none."""
    folder = RunLayout(run).checkpoints
    return Checkpoints(str(folder), folder) if folder.is_dir() else None


def sorted_out(paths: Sequence[Path]) -> tuple[list[Path], list[Checkpoints]]:
    """The runs and the checkpoints that `paths` name, without duplicates, in order.
    RunDirectoryError for a path that is neither.
    """
    runs: list[Path] = []
    folders: dict[Path, Checkpoints] = {}
    for path in paths:
        # `.` has a name then; a symlink with a checkpoint's name is not followed
        place = path.absolute()
        if STEP_NAME.match(place.name) and os.path.lexists(place) and not _is_run(place):
            known = folders.get(place.parent)
            names = (*(known.names or ()), place.name) if known else (place.name,)
            if known is None or known.names is not None:
                folders[place.parent] = Checkpoints(str(path.parent), place.parent, names)
        elif not _is_run(checked(path)) and holds_checkpoints(path):
            folders[place] = Checkpoints(str(path), path)
        else:
            runs += _runs_of(path)
    return list(dict.fromkeys(runs)), list(folders.values())


def checked(folder: Path) -> Path:
    """`folder`; RunDirectoryError where it is not a directory."""
    if not folder.is_dir():
        fact = (
            "is a file, need a run directory or a sweep folder"
            if folder.exists()
            else "does not exist"
        )
        raise RunDirectoryError(shown(str(folder)), fact, "name a folder under outputs/")
    return folder


def _runs_of(folder: Path) -> list[Path]:
    if _is_run(folder):
        return [folder]
    # A dangling link, for example to a run in memory before a reboot, is reported, not skipped.
    runs = [
        item
        for item in sorted(folder.iterdir())
        if (item.is_dir() and _is_run(item)) or (item.is_symlink() and not item.exists())
    ]
    if not runs:
        raise RunDirectoryError(
            shown(str(folder)),
            "is no run directory (no config.json) and holds none",
            "name a folder that `ecrl train` made",
        )
    return runs


def _is_run(folder: Path) -> bool:
    """A run that lost its config.json still counts as a run: its verdict is unknown."""
    layout = RunLayout(folder)
    return any(
        path.exists() for path in (layout.config, layout.supervisor, layout.logs, layout.metrics)
    )
