"""A run directory that lies elsewhere: made in the storage's folder, with a link where the run is looked for."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ecrl_cli.config.identity import run_id
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import RunDirectoryError
from ecrl_cli.records.layout import RunLayout


def link_run_dir(config: RunConfig, run_dir: Path) -> None:
    """Make the directory of a run whose storage is another folder, and the link to it; nothing where it is there or stays where it is named.

    What a reboot has taken is made anew, empty. RunDirectoryError where something else has taken its place.
    """
    if not config.storage.folder or (run_dir.exists() and (run_dir.is_symlink() or RunLayout(run_dir).config.exists())):
        return
    run_dir.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not lost(config, run_dir) and (run_dir.exists() or run_dir.is_symlink()):
        raise RunDirectoryError("run_dir", f"{run_dir} is not the link that storage.folder asks for", "choose another run_dir")
    place = _place(config, run_dir)
    place.mkdir(exist_ok=True, mode=0o700)
    if not _ours(place) or any(place.iterdir()):  # an empty one is of a start that was cut short
        fact = f"{place} is there already, and no run directory links to it"
        raise RunDirectoryError("storage.folder", fact, "remove it, or choose another storage.folder")
    if not run_dir.is_symlink():
        run_dir.symlink_to(place)


def lost(config: RunConfig, run_dir: Path) -> bool:
    """Whether the run lay in the storage's folder and is gone from there, as everything in memory is after a reboot."""
    return bool(config.storage.folder) and run_dir.is_symlink() and not run_dir.exists() and run_dir.readlink() == _place(config, run_dir)


def _place(config: RunConfig, run_dir: Path) -> Path:
    """Another one for each sweep's folder: two sweeps with the same run do not share it."""
    return Path(config.storage.folder) / f"ecrl-{os.geteuid()}-{run_id(config)[:16]}-{run_dir.parent.stat().st_ino:x}"


def _ours(place: Path) -> bool:
    """A directory, not a link that somebody else planted, that nobody else may write to."""
    status = place.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077
