"""A run directory that lies elsewhere: made in the storage's folder, with a link where the run is looked for."""

from __future__ import annotations

import os
from pathlib import Path

from ecrl_cli.config.identity import run_id
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import RunDirectoryError


def settle(config: RunConfig, run_dir: Path) -> None:
    """Make the directory of a run whose storage is another folder, and the link to it; nothing where it is there or stays where it is named.

    RunDirectoryError where something else has taken its place.
    """
    if not config.storage.folder or run_dir.exists():
        return
    run_dir.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    place = Path(config.storage.folder) / f"ecrl-{os.geteuid()}-{run_id(config)[:16]}-{run_dir.parent.stat().st_ino:x}"
    place.mkdir(exist_ok=True, mode=0o700)
    if place.stat().st_uid != os.geteuid() or any(place.iterdir()):  # an empty one is ours, from a start that was cut short
        fact = f"{place} is there already, and no run directory links to it"
        raise RunDirectoryError("storage.folder", fact, "remove it, or choose another storage.folder")
    run_dir.symlink_to(place)
