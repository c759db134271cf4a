"""What a checkpoint folder holds, newest first, and which of it may be loaded."""

from __future__ import annotations

import errno
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ecrl_cli.checkpoint.capture.memory_snapshots import SnapshotContent
from ecrl_cli.checkpoint.format.names import REJECTED_PREFIX, STAGE_PREFIX, STEP_NAME, TRASH_PREFIX
from ecrl_cli.checkpoint.store.atomic_install import remove_group, sidecar_of
from ecrl_cli.checkpoint.store.integrity import IntegrityReport
from ecrl_cli.errors import StorageError
from ecrl_cli.records.events import Rejected, SkippedSnapshot
from ecrl_cli.storage.fs import Fs
from ecrl_cli.storage.writing import TEMPORARY

_STALE = (errno.ENOENT, errno.ESTALE)
PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN)  # trouble of this process, not of a checkpoint
_LATE = tuple(errno.errorcode[number] for number in _STALE)  # how a StorageError's text begins
_LOOKS, _LATE_NAMES = 8, 16  # how often the folder is looked through anew, and how many names may be late


@dataclass(frozen=True)
class CheckpointEntry:
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
class MemorySnapshotChoice:
    """A snapshot in memory to go on with: of which attempt, behind which step, what it holds."""

    attempt: int
    global_step: int
    content: SnapshotContent


@dataclass(frozen=True)
class ResumeChoice:
    """The newest checkpoint that passed the guard, if any, and the newer ones that did not. `recalled`: the snapshot in memory that is newer."""

    report: IntegrityReport | None
    rejected: tuple[Rejected, ...]
    recalled: MemorySnapshotChoice | None = None
    forgone: tuple[SkippedSnapshot, ...] = ()


def entry_of(path: Path) -> CheckpointEntry:
    """The entry that `path` names; ValueError where it is no checkpoint's name."""
    match = STEP_NAME.match(path.name)
    if match is None:
        raise ValueError(f"{path.name} is not a checkpoint's name")
    return CheckpointEntry(int(match[1]), path)


def entries(fs: Fs, root: Path) -> list[CheckpointEntry]:
    """Newest first by the step in the name; none where the folder is missing."""
    return [entry_of(root / name) for name in _listed(fs, root)]


def _listed(fs: Fs, root: Path) -> list[str]:
    """The names of `entries`, in its order: a crowd of names costs less than as many paths."""
    try:
        names = _names(fs, root)
    except StorageError as error:
        if error.errno == errno.ENOENT:
            return []
        raise
    return sorted((name for name in names if STEP_NAME.match(name)), reverse=True)  # steps have one width: by name is by step


def _names(fs: Fs, root: Path) -> list[str]:
    """What `root` holds, asked twice where a network file system may answer from an old view (ENOENT, ESTALE)."""
    try:
        return fs.listdir(root)
    except StorageError as error:
        if error.errno not in _STALE:
            raise
    return fs.listdir(root)


def newest_valid(fs: Fs, root: Path, examine: Callable[[Path], IntegrityReport]) -> ResumeChoice:
    """Examine from the newest down until one passes. Changes nothing.

    A writer may be at work meanwhile: where something is refused and the folder has changed, the look begins anew. What a network
    file system may only be late with (ENOENT, ESTALE) is looked at once more before it counts as refused. StorageError where this
    process lacks what it takes to look (descriptors, memory): to pass over a good checkpoint would lose it.
    """
    for _ in range(_LOOKS):
        listed = _listed(fs, root)
        choice = _first_valid((entry_of(root / name) for name in listed), root, examine)
        if not choice.rejected or _listed(fs, root) == listed:
            break
    return _looked_again(choice, root, examine)


def _first_valid(listed: Iterable[CheckpointEntry], root: Path, examine: Callable[[Path], IntegrityReport]) -> ResumeChoice:
    rejected: list[Rejected] = []
    for entry in listed:
        report = examine(entry.path)
        if report.ok:
            return ResumeChoice(report, tuple(rejected))
        if report.unread is not None and report.unread.errno in PASSING:
            raise report.unread
        rejected.append(Rejected(entry.path.relative_to(root.parent).as_posix(), report.layer, report.reason))
    return ResumeChoice(None, tuple(rejected))


def _looked_again(choice: ResumeChoice, root: Path, examine: Callable[[Path], IntegrityReport]) -> ResumeChoice:
    """`choice`, or a newer checkpoint that was refused for a file that was not to be found and now is."""
    for index, refused in enumerate(choice.rejected[:_LATE_NAMES]):
        if refused.reason.startswith(_LATE):
            report = examine(root.parent / refused.path)
            if report.ok:
                return ResumeChoice(report, choice.rejected[:index])
    return choice


def quarantine(fs: Fs, entry: CheckpointEntry, prefix: str = REJECTED_PREFIX) -> tuple[Path, ...]:
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
