"""Lists the checkpoints in a folder, newest first, and chooses one to resume from."""

from __future__ import annotations

import errno
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ecrl_cli.checkpoint.format.names import REJECTED_PREFIX, STAGE_PREFIX, STEP_NAME, TRASH_PREFIX
from ecrl_cli.checkpoint.store.atomic_install import remove_group, sidecar_of
from ecrl_cli.checkpoint.store.integrity import IntegrityReport
from ecrl_cli.errors import StorageError
from ecrl_cli.records.events import Rejected
from ecrl_cli.storage.fs import Fs
from ecrl_cli.storage.writing import TEMPORARY

_STALE = (errno.ENOENT, errno.ESTALE)
# errors of this process, not of a checkpoint
TRANSIENT_ERRNOS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN)
_LATE = tuple(errno.errorcode[number] for number in _STALE)  # how a StorageError's text begins
# most searches of a changing folder; most rejected names that are checked again
_LOOKS, _LATE_NAMES = 8, 16


@dataclass(frozen=True)
class CheckpointEntry:
    """A file or folder with the name of a checkpoint, not yet checked."""

    global_step: int
    path: Path

    @property
    def single(self) -> bool:
        return bool(self.path.suffix)

    @property
    def files(self) -> tuple[Path, ...]:
        """Its paths in the checkpoint folder, the one with the commit first."""
        return (sidecar_of(self.path), self.path) if self.single else (self.path,)


@dataclass(frozen=True)
class ResumeChoice:
    """The newest checkpoint that passed the integrity check, if any, and the newer ones that
    failed.
    """

    report: IntegrityReport | None
    rejected: tuple[Rejected, ...]


def entry_of(path: Path) -> CheckpointEntry:
    """The entry for `path`; ValueError if it is not the name of a checkpoint."""
    match = STEP_NAME.match(path.name)
    if match is None:
        raise ValueError(f"{path.name} is not a checkpoint's name")
    return CheckpointEntry(int(match[1]), path)


def entries(fs: Fs, root: Path) -> list[CheckpointEntry]:
    """All entries, newest first by the step in the name; empty if the folder is missing."""
    return [entry_of(root / name) for name in _listed(fs, root)]


def _listed(fs: Fs, root: Path) -> list[str]:
    """The names of `entries`, in its order: cheaper than paths if there are many."""
    try:
        names = _names(fs, root)
    except StorageError as error:
        if error.errno == errno.ENOENT:
            return []
        raise
    # steps have a fixed width, so name order is step order
    return sorted((name for name in names if STEP_NAME.match(name)), reverse=True)


def _names(fs: Fs, root: Path) -> list[str]:
    """The names in `root`; listed again after ENOENT or ESTALE, which may come from a network file
    system's stale cache.
    """
    try:
        return fs.listdir(root)
    except StorageError as error:
        if error.errno not in _STALE:
            raise
    return fs.listdir(root)


def newest_valid(fs: Fs, root: Path, examine: Callable[[Path], IntegrityReport]) -> ResumeChoice:
    """Examine checkpoints from the newest down until one passes. Changes nothing.

    A writer may be at work meanwhile: if one is rejected and the folder has changed, the search
    restarts. A file that a network file system may only be late to show (ENOENT, ESTALE) is checked
    again before it counts as rejected. StorageError if this process lacks descriptors or memory:
    skipping a valid checkpoint for that would lose it.
    """
    for _ in range(_LOOKS):
        listed = _listed(fs, root)
        choice = _first_valid((entry_of(root / name) for name in listed), root, examine)
        if not choice.rejected or _listed(fs, root) == listed:
            break
    return _looked_again(choice, root, examine)


def _first_valid(
    listed: Iterable[CheckpointEntry], root: Path, examine: Callable[[Path], IntegrityReport]
) -> ResumeChoice:
    rejected: list[Rejected] = []
    for entry in listed:
        report = examine(entry.path)
        if report.ok:
            return ResumeChoice(report, tuple(rejected))
        if report.unread is not None and report.unread.errno in TRANSIENT_ERRNOS:
            raise report.unread
        rejected.append(
            Rejected(entry.path.relative_to(root.parent).as_posix(), report.layer, report.reason)
        )
    return ResumeChoice(None, tuple(rejected))


def _looked_again(
    choice: ResumeChoice, root: Path, examine: Callable[[Path], IntegrityReport]
) -> ResumeChoice:
    """`choice`, or a newer checkpoint that was rejected because a file was missing and passes
    now.
    """
    for index, refused in enumerate(choice.rejected[:_LATE_NAMES]):
        if refused.reason.startswith(_LATE):
            report = examine(root.parent / refused.path)
            if report.ok:
                return ResumeChoice(report, choice.rejected[:index])
    return choice


def quarantine(fs: Fs, entry: CheckpointEntry, prefix: str = REJECTED_PREFIX) -> tuple[Path, ...]:
    """Rename the files of `entry` out of the way, the commit first; returns the new paths. The
    caller syncs the folder.
    """
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
    """Remove files and checkpoint folders. Errors are ignored: what remains does not count and only
    costs space.
    """
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
    """Stages, trash and temporary files left by a dead writer."""
    return tuple(
        root / name
        for name in fs.listdir(root)
        if name.startswith((STAGE_PREFIX, TRASH_PREFIX, TEMPORARY))
    )
