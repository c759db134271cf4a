"""Run directories in storage.folder: the directory is created there, and the run's usual path becomes a symbolic link to it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ecrl_cli.config.identity import run_id
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import RunDirectoryError
from ecrl_cli.records.layout import RunLayout


def link_run_dir(config: RunConfig, run_dir: Path) -> None:
    """Create the run's directory in storage.folder and the link to it. Does nothing without storage.folder or where the run already exists.

    A directory lost in a reboot is created again, empty. RunDirectoryError if something else is in the place of the link or of the directory.
    """
    if not config.storage.folder or (run_dir.exists() and (run_dir.is_symlink() or RunLayout(run_dir).config.exists())):
        return
    run_dir.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not lost(config, run_dir) and (run_dir.exists() or run_dir.is_symlink()):
        raise RunDirectoryError("run_dir", f"{run_dir} is not the link that storage.folder asks for", "choose another run_dir")
    place = _place(config, run_dir)
    place.mkdir(exist_ok=True, mode=0o700)
    if not _ours(place) or any(place.iterdir()):  # an empty one was left by an interrupted start
        fact = f"{place} is there already, and no run directory links to it"
        raise RunDirectoryError("storage.folder", fact, "remove it, or choose another storage.folder")
    if not run_dir.is_symlink():
        run_dir.symlink_to(place)


def lost(config: RunConfig, run_dir: Path) -> bool:
    """Whether the run's directory in storage.folder is gone and the link remains, as after a reboot with the folder in memory."""
    return bool(config.storage.folder) and run_dir.is_symlink() and not run_dir.exists() and run_dir.readlink() == _place(config, run_dir)


def _place(config: RunConfig, run_dir: Path) -> Path:
    """The run's directory in storage.folder. The parent's inode is part of its name, so that two sweeps with the same run do not share it."""
    return Path(config.storage.folder) / f"ecrl-{os.geteuid()}-{run_id(config)[:16]}-{run_dir.parent.stat().st_ino:x}"


def _ours(place: Path) -> bool:
    """Whether `place` is a directory (not a link), owned by this user, with no access for others."""
    status = place.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077
