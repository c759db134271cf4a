"""Writes a checkpoint in memory to files under their final names: the commit protocol up to the
acknowledgement.

Group: a folder, built in `.stage_*` and renamed as a whole. Single: one file and its sidecar, each
renamed; the sidecar is the commit. Without `mode.atomic` the files are written under their final
names, and only the commit record, written last, makes them count.
"""

from __future__ import annotations

import errno
import hashlib
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ecrl_cli.checkpoint.format.canonical_json import canonical_json, digest
from ecrl_cli.checkpoint.format.hashing import ImageHasher
from ecrl_cli.checkpoint.format.image import CheckpointImage
from ecrl_cli.checkpoint.format.manifest import Commit, Manifest, PartEntry, make_commit
from ecrl_cli.checkpoint.format.names import (
    COMMIT,
    DIGEST,
    FORMAT_VERSION,
    MANIFEST,
    STAGE_PREFIX,
    STEP_METADATA,
    step_name,
)
from ecrl_cli.config.codec import encode
from ecrl_cli.errors import StorageError
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.storage.fs import Buffer, Fs
from ecrl_cli.storage.writing import WriteMode, half_written

CrashHook = Callable[[str], None]


@dataclass
class CommitJob:
    """One save in progress: its inputs, and its results so far."""

    fs: Fs
    root: Path
    mode: WriteMode
    crash_point: CrashHook
    pool: ThreadPoolExecutor
    image: CheckpointImage
    attempt: int
    previous: str | None
    key: bytes = b""
    digest: str = DIGEST
    began: float = field(default_factory=monotonic)
    files_at: float = 0.0  # when the files were written
    hashed_at: float = 0.0  # when their hashes were known too
    manifest: Manifest | None = None
    commit: Commit | None = None

    @property
    def stage_name(self) -> str:
        step = self.image.stamp.global_step
        return f"{STAGE_PREFIX}{step:08d}.{self.attempt}.{secrets.token_hex(4)}"

    def hasher(self) -> ImageHasher:
        """Starts hashing the image."""
        return ImageHasher(self.image, self.pool, self.digest)

    def write(self, path: Path, data: Buffer, half: str) -> None:
        with half_written(self.fs, path, data, self.mode):
            self.crash_point(half)

    def write_part(self, path: Path, name: str, data: Buffer) -> None:
        self.write(path, data, f"half_part:{name}")
        self.crash_point(f"after_part:{name}")

    def hashed(self, hasher: ImageHasher) -> dict[str, PartEntry]:
        """The entries of the written files; waits for their hashes."""
        self.files_at = monotonic()
        return hasher.entries()

    def records(self, entries: dict[str, PartEntry]) -> tuple[bytes, bytes]:
        """The bytes of MANIFEST and COMMIT for these parts. StorageError if they hold another state
        than the rank logged.
        """
        self.hashed_at = monotonic()
        self.files_at = self.files_at or self.hashed_at
        stamp, logged = self.image.stamp, self.image.state_digest
        if logged and (held := logged_digest(entries)) != logged:
            fact = (
                f"step {stamp.global_step} would be saved as {held[:8]}, rank 0 logged {logged[:8]}"
                " behind it"
            )
            raise StorageError(
                "capture",
                fact,
                "nothing was committed; if it comes back, use checkpoint.capture=copy",
            )
        self.manifest = Manifest(
            FORMAT_VERSION, attempt=self.attempt, parts=entries, digest=self.digest, **encode(stamp)
        )
        manifest = self.manifest.encoded()
        self.commit = make_commit(
            self.manifest, hashlib.sha256(manifest).hexdigest(), self.previous, self.key
        )
        return manifest, self.commit.encoded()

    def memory_of(self, name: str) -> memoryview:
        part = next(part for part in self.image.parts if part.name == name)
        return self.image.memory[part.offset : part.offset + part.nbytes]


def _always() -> bool:
    return True


class Installer(Protocol):
    """`build` writes the files under names that do not count yet; `install` renames them to their
    final names; `undo` removes them.

    `undo` removes what already has its final name only if the store is still `ours`: a newer
    attempt may have taken the name.
    """

    @property
    def target(self) -> Path: ...
    def build(self) -> None: ...
    def install(self) -> None: ...
    def undo(self, ours: Callable[[], bool] = _always) -> None: ...


class GroupInstaller:
    def __init__(self, work: CommitJob) -> None:
        self.work = work
        self.target = work.root / step_name(work.image.stamp.global_step)
        self.stage = work.root / work.stage_name if work.mode.atomic else self.target
        self._made = False

    def build(self) -> None:
        work = self.work
        work.crash_point("before_stage")
        hasher = work.hasher()
        work.fs.mkdir(self.stage)
        self._made = True
        for part in work.image.parts:
            work.write_part(self.stage / part.name, part.name, work.memory_of(part.name))
        for name, data in work.image.documents.items():
            work.write_part(self.stage / name, name, data)
        manifest, commit = work.records(work.hashed(hasher))
        work.crash_point("before_manifest")
        work.write(self.stage / MANIFEST, manifest, "half_manifest")
        work.crash_point("before_commit")
        work.write(self.stage / COMMIT, commit, "half_commit")
        work.crash_point("after_commit")
        if work.mode.sync_directories:
            work.crash_point("before_stage_sync")
            work.fs.fsyncdir(self.stage)

    def install(self) -> None:
        if self.work.mode.atomic:
            self.work.crash_point("before_rename")
            self.work.fs.rename(self.stage, self.target, replace=False)
        self._made = False
        self.work.crash_point("after_rename")

    def undo(self, ours: Callable[[], bool] = _always) -> None:
        if self._made and (self.work.mode.atomic or ours()):
            remove_group(self.work.fs, self.stage)


class SingleInstaller:
    def __init__(self, work: CommitJob) -> None:
        self.work = work
        (self.part,) = work.image.parts
        self.target = work.root / self.part.name
        self.sidecar = sidecar_of(self.target)
        stage = work.root / work.stage_name
        self.names = [
            (stage.with_name(stage.name + path.suffix) if work.mode.atomic else path, path)
            for path in (self.target, self.sidecar)
        ]
        self._made: list[Path] = []
        self._inode = 0  # of the data file, once it is about to be renamed

    def build(self) -> None:
        work, (data_path, sidecar_path) = self.work, [temporary for temporary, _ in self.names]
        work.crash_point("before_stage")
        hasher = work.hasher()
        self._made.append(data_path)
        work.write_part(data_path, self.part.name, work.memory_of(self.part.name))
        work.records(work.hashed(hasher))
        assert work.commit is not None
        (train,) = work.image.documents.values()
        document = canonical_json(
            {
                "commit": work.commit.document(),
                "manifest": encode(work.manifest),
                "train": train.decode(),
            }
        )
        work.crash_point("before_commit")
        self._made.append(sidecar_path)
        work.write(sidecar_path, document, "half_commit")
        work.crash_point("after_commit")

    def install(self) -> None:
        if self.work.mode.atomic:
            self.work.crash_point("before_rename")
            self._inode = self.work.fs.stat(self.names[0][0]).st_ino
            for source, target in self.names:
                self.work.fs.rename(source, target, replace=False)
                self._made[self._made.index(source)] = target
                if target == self.target:
                    self.work.crash_point("between_renames")
        self._made = []
        self.work.crash_point("after_rename")

    def undo(self, ours: Callable[[], bool] = _always) -> None:
        for path in reversed(self._made):
            with suppress(StorageError):
                if path.name.startswith(STAGE_PREFIX) or self._is_still_mine(path, ours):
                    self.work.fs.unlink(path)

    def _is_still_mine(self, path: Path, ours: Callable[[], bool]) -> bool:
        """Whether a final name still refers to this save's file: another writer may have
        quarantined it and installed its own.
        """
        return ours() and (not self._inode or self.work.fs.stat(path).st_ino == self._inode)


def logged_digest(entries: dict[str, PartEntry]) -> str:
    """One digest of the parameters, buffers and optimizer in these parts, defined as in a rank's
    log line.
    """
    tensors = [
        [name, tensor.digest]
        for part in entries.values()
        for name, tensor in part.tensors.items()
        if not name.startswith("rng.")
    ]
    return digest(sorted(tensors))


def sidecar_of(path: Path) -> Path:
    """The sidecar of a single-file checkpoint."""
    return path.with_suffix(".json")


def remove_group(fs: Fs, folder: Path) -> None:
    """Remove a checkpoint's folder, the commit first, so that a partly removed one never counts."""
    for name in sorted(fs.listdir(folder), key=lambda name: name not in (COMMIT, STEP_METADATA)):
        try:
            fs.unlink(folder / name)
        except StorageError as error:
            if error.errno not in (errno.EISDIR, errno.EPERM):
                raise
            # only other checkpointers have folders in a checkpoint's
            remove_group(fs, folder / name)
    fs.rmdir(folder)
