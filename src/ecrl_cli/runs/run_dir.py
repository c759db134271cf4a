"""Checks whether a folder may become, or already is, the directory of a run or a sweep, and puts
one into storage.folder.

With storage.folder the run's directory is created there, and its usual path becomes a symbolic link
to it.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import Any

from ecrl_cli.config.codec import encode
from ecrl_cli.config.estimates import human_bytes, snapshot_bytes
from ecrl_cli.config.identity import BEFORE, NOT_IDENTITY
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.errors import ConfigError, RecordError, RunDirectoryError, shown
from ecrl_cli.records.events import SCHEMA_VERSION
from ecrl_cli.records.journal import read_json
from ecrl_cli.records.layout import RunLayout, SweepLayout
from ecrl_cli.runs.continuation import check_continuation
from ecrl_cli.runs.environment import differences
from ecrl_cli.runs.run_plan import RunPlan
from ecrl_cli.storage.files import sync_directory
from ecrl_cli.storage.safe_read import refuse_links

# Files that an interrupted start leaves in a run directory before config.json is written.
_BEGUN = re.compile(
    r"^(\.hydra|\.lock|\.control|\.writer|environment\.json|failures\.json|initial|\..*\.tmp)$"
)
# Paths that a run writes to in place, without replacing whole files.
_WRITTEN = ("logs", "fired", "disk.jsonl", "scrub.jsonl", ".hydra", ".lock", "report")
_LOGS_BYTES = 20 * 10**6
_START_BYTES = 2 * 10**6  # records of a start without checkpoints


def check_run_dir(run: RunPlan) -> None:
    """Raise RunDirectoryError, ConfigError or RecordError unless the run's directory is free for,
    or already holds, exactly this run.
    """
    layout, config = run.layout, run.config
    here = _nearest(layout.root)
    if here == layout.root:
        _check_owner(here, config.checkpoint.trust_owner)
        _check_contents(run)
        refuse_links(layout.root, _WRITTEN)
        if layout.checkpoints.is_symlink():  # the checkpoint store checks its content
            refuse_links(layout.root, [layout.checkpoints.name])
    _check_writable(here)
    if strategy_of(config).saves:
        disk = (
            Path(config.storage.folder) if config.storage.folder and here != layout.root else here
        )
        _check_space(disk, config, layout)
        if config.write_mode.sync_directories:
            _check_directory_sync(disk)
    elif not layout.config.exists():
        check_space(here)


def claim_sweep(layout: SweepLayout) -> None:
    """RunDirectoryError unless `layout` is free for, or already holds, a sweep."""
    here = _nearest(layout.root)
    if here == layout.root:
        if RunLayout(here).config.exists():
            raise RunDirectoryError(
                "run_dir",
                f"{here} is a run directory",
                "a sweep needs a folder of its own: choose another run_dir",
            )
        if not layout.manifest.exists():
            _refuse_foreign(here)
        refuse_links(here, (".hydra",))
    _check_writable(here)
    if not layout.manifest.exists():
        check_space(here)


def claim_folder(root: Path, ours: tuple[str, ...]) -> None:
    """RunDirectoryError unless `root` can be created, or contains nothing but `ours`."""
    here = _nearest(root)
    if here == root and (
        foreign := sorted(item.name for item in root.iterdir() if item.name not in ours)
    ):
        raise RunDirectoryError(
            "run_dir",
            f"{root} contains other files (first: {shown(foreign[0])})",
            "choose an empty directory",
        )
    _check_writable(here)
    check_space(here)


def check_space(path: Path) -> None:
    """RunDirectoryError where the disk of `path`, or of its nearest parent, has no room for the
    records of a start.
    """
    here = _nearest(path)
    volume = os.statvfs(here)
    free = volume.f_bavail * volume.f_frsize
    if free < _START_BYTES:
        fact = (
            f"needs at least {human_bytes(_START_BYTES)} to begin, {human_bytes(free)} free on"
            f" {here}"
        )
        raise RunDirectoryError(
            "run_dir", fact, "free space, or name a folder on another disk: run_dir=DIR"
        )


def _nearest(path: Path) -> Path:
    """`path` if it is a directory, else its nearest existing parent directory.

    RunDirectoryError if the path is not UTF-8 (records, Hydra and launch.json could not contain
    it), or not usable as a directory.
    """
    if not all(_is_utf8(str(each)) for each in (path.absolute(), os.path.realpath(path))):
        raise RunDirectoryError(
            "run_dir", f"the path is not UTF-8: {path.absolute()}", "choose another run_dir"
        )
    for candidate in (path, *path.absolute().parents):
        try:
            mode = candidate.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            if candidate.is_symlink():
                raise RunDirectoryError(
                    "run_dir",
                    f"{candidate} is a symbolic link to nothing",
                    "choose another run_dir",
                ) from None
            continue
        except OSError as error:
            raise _unreadable(candidate, error) from error
        if not stat.S_ISDIR(mode):
            raise RunDirectoryError(
                "run_dir", f"{candidate} is a file, need a directory", "choose another run_dir"
            )
        return candidate
    return Path("/")


def _is_utf8(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _unreadable(path: Path, error: OSError) -> RunDirectoryError:
    facts = {
        errno.ELOOP: "too many symbolic links",
        errno.ENAMETOOLONG: "the name is too long",
        errno.EACCES: "no permission to look into",
    }
    fact = facts.get(error.errno or 0, str(error.strerror))
    return RunDirectoryError("run_dir", f"{fact} at {shown(str(path))}", "choose another run_dir")


def _check_owner(path: Path, trusted: bool) -> None:
    if trusted:
        return
    status = path.stat()
    mode = stat.S_IMODE(status.st_mode)
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        fact = f"{path} has mode {mode:04o}, which lets others plant checkpoints"
        raise RunDirectoryError("run_dir", fact, "chmod 700 it or set checkpoint.trust_owner=true")
    if status.st_uid not in (os.geteuid(), 0):
        fact = f"{path} belongs to uid {status.st_uid}, this is uid {os.geteuid()}"
        raise RunDirectoryError(
            "run_dir", fact, "choose another run_dir or set checkpoint.trust_owner=true"
        )


def _check_contents(run: RunPlan) -> None:
    layout = run.layout
    if not layout.config.exists():
        _refuse_foreign(layout.root)
        return
    document = read_json(layout.config)
    if not isinstance(document, dict) or not isinstance(document.get("config"), dict):
        raise RecordError(
            "config.json",
            f"not a run configuration at {layout.root}",
            "restore the file or choose another run_dir",
        )
    version = document.get("schema_version")
    if version != SCHEMA_VERSION:
        fact = f"{layout.root} has schema version {version}, this ECRL reads {SCHEMA_VERSION}"
        raise RunDirectoryError(
            "run_dir", fact, "use the version that wrote it or choose another run_dir"
        )
    if document.get("run_id") != run.run_id:
        raise _another_run(run, document)
    check_continuation(run.config, layout)


def _another_run(run: RunPlan, document: dict[str, Any]) -> RunDirectoryError:
    changes = ", ".join(
        differences({**BEFORE, **document["config"]}, encode(run.config), NOT_IDENTITY)[:3]
    )
    fact = (
        f"{run.layout.root} belongs to run {str(document.get('run_id'))[:8]}, this configuration is"
        f" {run.run_id[:8]}"
    )
    way = "set it back or choose another run_dir"
    if changes.startswith("target_steps "):
        way = (
            "a run keeps its target until it has reached it: set it back, or choose another run_dir"
            " for a new run"
        )
    return RunDirectoryError("run_dir", f"{fact} ({changes or 'config.json was edited'})", way)


def _refuse_foreign(path: Path) -> None:
    try:
        foreign = sorted(item.name for item in path.iterdir() if not _BEGUN.match(item.name))
    except OSError as error:
        raise _unreadable(path, error) from error
    if foreign:
        fact = f"{path} contains files that ECRL did not make (first: {shown(foreign[0])})"
        raise RunDirectoryError("run_dir", fact, "choose an empty directory")


def _check_writable(path: Path) -> None:
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        raise RunDirectoryError(
            "run_dir", f"the file system of {path} is mounted read-only", "choose another run_dir"
        )
    if not os.access(path, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        mode = stat.S_IMODE(path.stat().st_mode)
        raise RunDirectoryError(
            "run_dir",
            f"no write permission on {path} (uid {os.geteuid()}, mode {mode:04o})",
            "choose another run_dir",
        )


def _check_space(path: Path, config: RunConfig, layout: RunLayout) -> None:
    if layout.config.exists():
        return
    size, kept = snapshot_bytes(config), config.checkpoint.keep + 1
    volume = os.statvfs(path)
    free, need = volume.f_bavail * volume.f_frsize, kept * size + _LOGS_BYTES
    if need > free:
        fact = (
            f"needs about {human_bytes(need)} ({kept} x {human_bytes(size)} and logs),"
            f" {human_bytes(free)} free on {path}"
        )
        raise RunDirectoryError(
            "run_dir",
            fact,
            "free space, lower checkpoint.keep, or name a folder on another disk: run_dir=DIR",
        )


def _check_directory_sync(path: Path) -> None:
    try:
        sync_directory(path)
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "unknown errno")
        fact = f"directory sync is not supported on this file system ({name} at {path})"
        raise ConfigError(
            "write_mode",
            fact,
            "use another run_dir, or choose write_mode=atomic_nodirsync knowingly",
        ) from error


def link_run_dir(run: RunPlan) -> None:
    """Create the run's directory in storage.folder and the link to it. Does nothing without
    storage.folder or where the run already exists.

    A directory lost in a reboot is created again, empty. RunDirectoryError if something else is in
    the place of the link or of the directory.
    """
    run_dir = run.layout.root
    if not run.config.storage.folder or (
        run_dir.exists() and (run_dir.is_symlink() or run.layout.config.exists())
    ):
        return
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    if not lost(run) and (run_dir.exists() or run_dir.is_symlink()):
        raise RunDirectoryError(
            "run_dir",
            f"{run_dir} is not the link that storage.folder asks for",
            "choose another run_dir",
        )
    place = _place(run)
    place.mkdir(exist_ok=True, mode=0o700)  # others write to such a folder too, /dev/shm
    if not _ours(place) or any(place.iterdir()):  # an empty one was left by an interrupted start
        fact = f"{place} is there already, and no run directory links to it"
        raise RunDirectoryError(
            "storage.folder", fact, "remove it, or choose another storage.folder"
        )
    if not run_dir.is_symlink():
        run_dir.symlink_to(place)


def lost(run: RunPlan) -> bool:
    """Whether the run's directory in storage.folder is gone and the link remains, as after a reboot
    with the folder in memory.
    """
    run_dir = run.layout.root
    return (
        bool(run.config.storage.folder)
        and run_dir.is_symlink()
        and not run_dir.exists()
        and run_dir.readlink() == _place(run)
    )


def _place(run: RunPlan) -> Path:
    """The run's directory in storage.folder. The parent's inode is part of its name, so that two
    sweeps with the same run do not share it.
    """
    return (
        Path(run.config.storage.folder)
        / f"ecrl-{os.geteuid()}-{run.run_id[:16]}-{run.layout.root.parent.stat().st_ino:x}"
    )


def _ours(place: Path) -> bool:
    """Whether `place` is a directory (not a link), owned by this user, with no access for
    others.
    """
    status = place.lstat()
    return (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == os.geteuid()
        and not stat.S_IMODE(status.st_mode) & 0o077
    )
