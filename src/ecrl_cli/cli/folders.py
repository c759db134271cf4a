"""The run directories that a command line names: a sweep folder stands for all its runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from ecrl_cli.errors import ConfigError, RunDirectoryError, shown
from ecrl_cli.records.layout import RunLayout


class Parser(argparse.ArgumentParser):
    """argparse whose complaints are our one line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError("arguments", message, f"`{self.prog} --help` shows examples")


def checked(folder: Path) -> Path:
    """`folder`, or RunDirectoryError where it is none."""
    if not folder.is_dir():
        fact = "is a file, need a run directory or a sweep folder" if folder.exists() else "does not exist"
        raise RunDirectoryError(shown(str(folder)), fact, "name a folder under outputs/")
    return folder


def run_directories(folders: Sequence[Path]) -> list[Path]:
    """Each run directory once, in order. RunDirectoryError for a folder that is no run and holds none."""
    found = [run for folder in folders for run in _runs_of(checked(folder))]
    return list(dict.fromkeys(found))


def _runs_of(folder: Path) -> list[Path]:
    if _is_run(folder):
        return [folder]
    runs = [item for item in sorted(folder.iterdir()) if item.is_dir() and _is_run(item)]
    if not runs:
        raise RunDirectoryError(shown(str(folder)), "is no run directory (no config.json) and holds none", "name a folder that `ecrl train` made")
    return runs


def _is_run(folder: Path) -> bool:
    """A run that lost its config.json is still a run: its verdict is unknown, it is not passed over."""
    layout = RunLayout(folder)
    return any(path.exists() for path in (layout.config, layout.supervisor, layout.logs, layout.metrics))
