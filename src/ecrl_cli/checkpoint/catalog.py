"""What a checkpoint folder holds, newest first, and which of it may be loaded."""

from __future__ import annotations

import errno
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ecrl_cli.checkpoint.guard import GuardReport
from ecrl_cli.checkpoint.install import remove_group, sidecar_of
from ecrl_cli.checkpoint.protocol import REJECTED_PREFIX, STAGE_PREFIX, STEP_NAME, TRASH_PREFIX
from ecrl_cli.errors import StorageError
from ecrl_cli.records.events import Rejected
from ecrl_cli.storage.fs import Fs
from ecrl_cli.storage.writing import TEMPORARY


@dataclass(frozen=True)
class Entry:
    """A name that claims to be a checkpoint."""

    global_step: int
    path: Path

    @property
    def single(self) -> bool:
        return bool(self.path.suffix)

    @property
    def files(self) -> tuple[Path, ...]:
        """The names in the checkpoint folder that belong to it, the one that makes it count first."""
        return (sidecar_of(self.path), self.path) if self.single else (self.path,)


@dataclass(frozen=True)
class Choice:
    """The newest checkpoint that passed the guard, if any, and the newer ones that did not."""

    report: GuardReport | None
    rejected: tuple[Rejected, ...]


def entry_of(path: Path) -> Entry:
    """The entry that `path` names; ValueError where it is no checkpoint's name."""
    match = STEP_NAME.match(path.name)
    if match is None:
        raise ValueError(f"{path.name} is not a checkpoint's name")
    return Entry(int(match[1]), path)


def entries(fs: Fs, root: Path) -> list[Entry]:
    """Newest first by the step in the name; none where the folder is missing."""
    try:
        names = fs.listdir(root)
    except StorageError as error:
        if error.errno == errno.ENOENT:
            return []
        raise
    found = [entry_of(root / name) for name in names if STEP_NAME.match(name)]
    return sorted(found, key=lambda entry: (entry.global_step, entry.path.name), reverse=True)


def newest_valid(fs: Fs, root: Path, examine: Callable[[Path], GuardReport]) -> Choice:
    """Examine from the newest down until one passes. Changes nothing."""
    rejected: list[Rejected] = []
    for entry in entries(fs, root):
        report = examine(entry.path)
        if report.ok:
            return Choice(report, tuple(rejected))
        rejected.append(Rejected(entry.path.relative_to(root.parent).as_posix(), report.layer, report.reason))
    return Choice(None, tuple(rejected))


def set_aside(fs: Fs, entry: Entry, prefix: str = REJECTED_PREFIX) -> tuple[Path, ...]:
    """Rename what belongs to `entry` out of the way, the commit first; gives the new names. The caller syncs the folder."""
    mark = secrets.token_hex(4)
    moved = []
    for path in entry.files:
        target = path.with_name(f"{prefix}{path.stem}.{mark}{path.suffix}")
        try:
            fs.rename(path, target, replace=False)
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            continue
        moved.append(target)
    return tuple(moved)


def discard(fs: Fs, paths: tuple[Path, ...]) -> None:
    """Remove files and checkpoint folders. What does not go counts for nothing and costs only its space: it stays."""
    for path in paths:
        with suppress(StorageError):
            _remove(fs, path)


def _remove(fs: Fs, path: Path) -> None:
    try:
        fs.unlink(path)
    except StorageError as error:
        if error.errno not in (errno.EISDIR, errno.EPERM):
            raise
        remove_group(fs, path)


def leftovers(fs: Fs, root: Path) -> tuple[Path, ...]:
    """Stages, trash and temporary files that a dead writer left."""
    return tuple(root / name for name in fs.listdir(root) if name.startswith((STAGE_PREFIX, TRASH_PREFIX, TEMPORARY)))
