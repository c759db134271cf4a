"""Planted bugs of the kinds "order" and "guard": stores that do the protocol's steps wrongly, and
integrity checks that leave something out.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from ecrl_cli.checkpoint.format.hashing import ImageHasher
from ecrl_cli.checkpoint.format.image import CheckpointImage
from ecrl_cli.checkpoint.format.names import (
    COMMIT,
    LATEST,
    MANIFEST,
    MODEL,
    OPTIMIZER,
    RNG,
    STAGE_PREFIX,
    STEP_NAME,
    TRAIN,
    TRASH_PREFIX,
)
from ecrl_cli.checkpoint.store import catalog
from ecrl_cli.checkpoint.store.atomic_install import (
    CommitJob,
    GroupInstaller,
    SingleInstaller,
    sidecar_of,
)
from ecrl_cli.checkpoint.store.catalog import CheckpointEntry, ResumeChoice
from ecrl_cli.checkpoint.store.integrity import IntegrityConfig, IntegrityReport, verify_checkpoint
from ecrl_cli.checkpoint.store.store import CheckpointStore, Retired, Saved
from ecrl_cli.errors import StorageError
from ecrl_cli.storage.fs import FOLDER, Fs, PosixFs
from ecrl_cli.storage.safe_read import open_regular, read_small
from ecrl_cli.studies.mutants import override

VerifyCheckpoint = Callable[[Path, IntegrityConfig | None, Fs | None], IntegrityReport]


def blind_at(layer: str) -> VerifyCheckpoint:
    """Whatever the integrity check would reject at `layer` passes, and later layers do not see
    it.
    """

    def verifier(
        path: Path, config: IntegrityConfig | None = None, fs: Fs | None = None
    ) -> IntegrityReport:
        report = verify_checkpoint(path, config, fs)
        return _passed(report) if report.layer == layer else report

    return verifier


def sizes_only(
    path: Path, config: IntegrityConfig | None = None, fs: Fs | None = None
) -> IntegrityReport:
    """Checks records, names and sizes only, not contents."""
    return verify_checkpoint(path, replace(config or IntegrityConfig(), contents=False), fs)


def names_only(
    path: Path, config: IntegrityConfig | None = None, fs: Fs | None = None
) -> IntegrityReport:
    """Checks names only: a checkpoint with all its files passes."""
    fs, report = fs or PosixFs(), verify_checkpoint(path, config, fs)
    try:
        names = set(fs.listdir(path.parent if path.suffix else path))
    except StorageError:
        return report
    due = (
        {path.name, sidecar_of(path).name}
        if path.suffix
        else {COMMIT, MANIFEST, MODEL, OPTIMIZER, RNG, TRAIN}
    )
    return (
        _passed(report)
        if due <= names
        else replace(report, ok=False, layer="parts", reason="a file is missing")
    )


def _passed(report: IntegrityReport) -> IntegrityReport:
    match = STEP_NAME.match(report.path.name)
    step = report.global_step if report.global_step is not None or match is None else int(match[1])
    return replace(report, ok=True, layer="", reason="", global_step=step)


class MutantStore(CheckpointStore):
    """A store with a given integrity check. Methods overridden in subclasses are the bug."""

    verifier: VerifyCheckpoint = staticmethod(verify_checkpoint)

    @override
    def verify(self, path: Path) -> IntegrityReport:
        return self.verifier(path, self.config.integrity, self.fs)


class _Reordered(MutantStore):
    """A minimal save without conflict check and fencing, with the steps in the right order."""

    @override
    def save(self, image: CheckpointImage, attempt: int) -> Saved:
        work, installer = self.begun(image, attempt)
        try:
            self.steps(work, installer)
        finally:
            with suppress(StorageError):
                installer.undo()
        return self.done(work, installer)

    def begun(
        self, image: CheckpointImage, attempt: int
    ) -> tuple[CommitJob, GroupInstaller | SingleInstaller]:
        work = CommitJob(
            self.fs,
            self.root,
            self.config.mode,
            self.crash_point,
            self._pool,
            image,
            attempt,
            self._previous(image.stamp.global_step),
        )
        return work, (
            SingleInstaller(work)
            if image.parts[0].name.startswith("step_")
            else GroupInstaller(work)
        )

    def steps(self, work: CommitJob, installer: GroupInstaller | SingleInstaller) -> None:
        installer.build()
        installer.install()
        self._sync(self.root)
        self.crash_point("after_root_sync")

    def done(self, work: CommitJob, installer: GroupInstaller | SingleInstaller) -> Saved:
        assert work.commit is not None
        self._verified[installer.target.name] = work.commit.self_sha256
        return Saved(installer.target, work.commit.self_sha256, work.image.nbytes, 0.0, 0.0)


class _Owing(_Reordered):
    """Acknowledges first and completes the save when it updates the pointers."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.owed: Callable[[], None] = lambda: None

    @override
    def update_pointers_and_retire(
        self, saved: Saved, image: CheckpointImage
    ) -> tuple[Retired, ...]:
        self.owed()
        return super().update_pointers_and_retire(saved, image)


class AcknowledgesBeforeTheRename(_Owing):
    @override
    def save(self, image: CheckpointImage, attempt: int) -> Saved:
        work, installer = self.begun(image, attempt)
        installer.build()

        def rest() -> None:
            installer.install()
            self._sync(self.root)

        self.owed = rest
        return self.done(work, installer)


class AcknowledgesBeforeTheSync(_Owing):
    def steps(self, work: CommitJob, installer: GroupInstaller | SingleInstaller) -> None:
        installer.build()
        installer.install()
        self.owed = lambda: self._sync(self.root)


class _Greedy(_Reordered):
    """Keeps one checkpoint, and counts the one being written."""

    @override
    def update_pointers_and_retire(
        self, saved: Saved, image: CheckpointImage
    ) -> tuple[Retired, ...]:
        return ()

    def retire_older(self, step: int) -> None:
        for entry in self.entries():
            if entry.global_step < step:
                self._trash(entry)


class RetiresBeforeTheRename(_Greedy):
    def steps(self, work: CommitJob, installer: GroupInstaller | SingleInstaller) -> None:
        installer.build()
        self.retire_older(work.image.stamp.global_step)
        installer.install()
        self._sync(self.root)


class RetiresBeforeTheSync(_Greedy):
    def steps(self, work: CommitJob, installer: GroupInstaller | SingleInstaller) -> None:
        installer.build()
        installer.install()
        self.retire_older(work.image.stamp.global_step)
        self._sync(self.root)


class _Early(GroupInstaller):
    """Takes the final name as soon as the parts are there; the records are written into it."""

    @override
    def build(self) -> None:
        work = self.work
        work.crash_point("before_stage")
        hasher = ImageHasher(work.image, work.pool)
        work.fs.mkdir(self.stage)
        self.parts()
        if work.mode.sync_directories:
            work.fs.fsyncdir(self.stage)
        self.take_name()
        manifest, commit = work.records(hasher.entries())
        work.crash_point("before_manifest")
        work.write(self.stage / MANIFEST, manifest, "half_manifest")
        work.crash_point("before_commit")
        work.write(self.stage / COMMIT, commit, "half_commit")
        work.crash_point("after_commit")

    def parts(self) -> None:
        for part in self.work.image.parts:
            self.work.write_part(self.stage / part.name, part.name, self.work.memory_of(part.name))
        for name, data in self.work.image.documents.items():
            self.work.write_part(self.stage / name, name, data)

    def take_name(self) -> None:
        if self.work.mode.atomic:
            self.work.crash_point("before_rename")
            self.work.fs.rename(self.stage, self.target, replace=False)
            self.work.crash_point("after_rename")
        self.stage = self.target

    @override
    def install(self) -> None:
        """Nothing to do: installed already."""


class RenamesBeforeTheManifest(_Reordered):
    def steps(self, work: CommitJob, installer: GroupInstaller | SingleInstaller) -> None:
        _Early(work).build()
        self._sync(self.root)
        self.crash_point("after_root_sync")


class CommitsBeforeTheParts(_Reordered):
    """Writes MANIFEST and COMMIT first; the parts follow under the final name."""

    def steps(self, work: CommitJob, installer: GroupInstaller | SingleInstaller) -> None:
        early = _Early(work)
        entries = ImageHasher(work.image, work.pool).entries()
        work.crash_point("before_stage")
        work.fs.mkdir(early.stage)
        manifest, commit = work.records(entries)
        work.write(early.stage / MANIFEST, manifest, "half_manifest")
        work.write(early.stage / COMMIT, commit, "half_commit")
        work.crash_point("after_commit")
        early.take_name()
        early.parts()
        if work.mode.sync_directories:
            work.fs.fsyncdir(early.target)
        self._sync(self.root)
        self.crash_point("after_root_sync")


class TrustsThePointer(_Reordered):
    """Moves the pointer before the name is durable, and recovers what it names without listing the
    folder.
    """

    def steps(self, work: CommitJob, installer: GroupInstaller | SingleInstaller) -> None:
        installer.build()
        installer.install()
        with suppress(StorageError):
            self.point(installer.target, {"global_step": work.image.stamp.global_step})
        self._sync(self.root)

    @override
    def newest_valid(self) -> ResumeChoice:
        try:
            folder = self.fs.open(self.root, FOLDER)
            try:
                fd, size = open_regular(self.fs, folder, LATEST, trust_owner=True)
                try:
                    name = json.loads(read_small(self.fs, fd, size, 4096))["path"]
                finally:
                    self.fs.close(fd)
            finally:
                self.fs.close(folder)
        except (StorageError, ValueError):
            return ResumeChoice(None, ())
        report = self.verify(self.root / name)
        return ResumeChoice(report if report.ok else None, ())


class SweepsWhatIsOld(MutantStore):
    """Sweeps all names but the newest, without verifying that one."""

    @override
    def sweep_leftovers(self) -> None:
        super().sweep_leftovers()
        for entry in self.entries()[1:]:
            catalog.discard(self.fs, catalog.quarantine(self.fs, entry, TRASH_PREFIX))


class UnlinksThePartsFirst(MutantStore):
    """Retires without the trash, COMMIT last: a partly deleted checkpoint still has its commit."""

    @override
    def _trash(self, entry: CheckpointEntry) -> None:
        if entry.single:
            self.fs.unlink(entry.path)
            self.fs.unlink(entry.files[0])
            return
        for name in sorted(self.fs.listdir(entry.path), key=lambda name: name == COMMIT):
            self.fs.unlink(entry.path / name)
        self.fs.rmdir(entry.path)


@contextmanager
def _existing() -> Iterator[None]:
    """Counts an existing file as written."""
    try:
        yield
    except StorageError as error:
        if error.errno != errno.EEXIST:
            raise


class ReusesTheStage(_Reordered):
    """Continues in an existing stage and counts the files in it as written."""

    @override
    def sweep_leftovers(self) -> None:
        """Does nothing: a stage may be reused."""

    def steps(self, work: CommitJob, installer: GroupInstaller | SingleInstaller) -> None:
        assert isinstance(installer, GroupInstaller)
        mine = f"{STAGE_PREFIX}{work.image.stamp.global_step:08d}"
        installer.stage = next(
            (self.root / name for name in self.fs.listdir(self.root) if name.startswith(mine)),
            installer.stage,
        )
        _fill(work, installer.stage)
        installer.install()
        self._sync(self.root)


class OverwritesInPlace(_Reordered):
    """Writes under the final name, over existing files."""

    def steps(self, work: CommitJob, installer: GroupInstaller | SingleInstaller) -> None:
        with suppress(StorageError):
            for name in self.fs.listdir(installer.target):
                self.fs.unlink(installer.target / name)
        _fill(work, installer.target)
        self._sync(self.root)
        self.crash_point("after_root_sync")


def _fill(work: CommitJob, folder: Path) -> None:
    """Write all files of a group, in the right order, into a folder that may exist."""
    entries = ImageHasher(work.image, work.pool).entries()
    with _existing():
        work.fs.mkdir(folder)
    manifest, commit = work.records(entries)
    files = {part.name: work.memory_of(part.name) for part in work.image.parts} | dict(
        work.image.documents
    )
    for name, data in (files | {MANIFEST: manifest, COMMIT: commit}).items():
        with _existing():
            work.write_part(folder / name, name, data)
    if work.mode.sync_directories:
        work.fs.fsyncdir(folder)
