"""The checkpoint store of one run: commits images, chooses a checkpoint to resume from, retires old
ones. Torch-free; one writer at a time.

docs/decisions/commit-protocol.md explains the protocol step by step. No decision depends on a clock
or an mtime: order is by the step in the name, validity by the integrity check.
"""

from __future__ import annotations

import errno
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from ecrl_cli.checkpoint.format.hashing import workers
from ecrl_cli.checkpoint.format.image import CheckpointImage
from ecrl_cli.checkpoint.format.names import DIGEST, LATEST, LATEST_OK, TRASH_PREFIX
from ecrl_cli.checkpoint.format.train_document import state_in
from ecrl_cli.checkpoint.store import catalog
from ecrl_cli.checkpoint.store.atomic_install import (
    CommitJob,
    CrashHook,
    GroupInstaller,
    Installer,
    SingleInstaller,
)
from ecrl_cli.checkpoint.store.catalog import CheckpointEntry, ResumeChoice, entry_of
from ecrl_cli.checkpoint.store.fencing import FencingToken
from ecrl_cli.checkpoint.store.integrity import IntegrityConfig, IntegrityReport, verify_checkpoint
from ecrl_cli.config.hmac_key import read_key
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.config.strategies import may_hold, strategy_of
from ecrl_cli.errors import CheckpointConflict, Fenced, StorageError
from ecrl_cli.linux.clock import monotonic, wall
from ecrl_cli.records.messages import held_from, launch_of
from ecrl_cli.storage.fs import Fs, PosixFs
from ecrl_cli.storage.fs_wrapper import ThrottledFs
from ecrl_cli.storage.writing import WriteMode, ready_to_link, ready_to_replace

# errors that a damaged checkpoint itself may cause
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


@dataclass(frozen=True)
class StoreConfig:
    """`keep`: how many verified checkpoints retention keeps, at least two. `bytes_per_s`: limit of
    the write rate; 0: none. `digest`: which hash new checkpoints get (`names.DIGESTS`). `holds`:
    retention spares one more, from which the rest of the run may begin (`held_from`).
    """

    mode: WriteMode = field(default_factory=WriteMode)
    keep: int = 3
    integrity: IntegrityConfig = field(default_factory=IntegrityConfig)
    bytes_per_s: float = 0.0
    digest: str = DIGEST
    holds: bool = False

    @classmethod
    def of(cls, config: RunConfig, run_id: str) -> StoreConfig:
        mode, checkpoint = config.write_mode, config.checkpoint
        return cls(
            mode=WriteMode(mode.sync_files, mode.atomic, mode.sync_directories),
            keep=checkpoint.keep,
            integrity=IntegrityConfig(
                run_id=run_id,
                max_bytes=checkpoint.max_bytes,
                trust_owner=checkpoint.trust_owner,
                hmac_key=read_key(checkpoint.hmac_key_file),
                finite=checkpoint.finite,
                restorable=True,
                checkpointer=strategy_of(config).checkpointer,
            ),
            bytes_per_s=config.storage.bytes_per_s,
            digest=checkpoint.digest,
            holds=config.reference == "always" and may_hold(config),
        )


@dataclass(frozen=True)
class Saved:
    """A committed checkpoint, as durable as the write mode promises. Seconds: `write_s` writing the
    files, `hash_s` waiting for their hashes, `commit_s` all else up to the acknowledgement; their
    sum is the duration of `save`. `state`: one digest per component (`train_document.state_in`);
    empty where another checkpointer wrote it.
    """

    path: Path
    commit_sha256: str
    bytes: int
    write_s: float
    commit_s: float
    hash_s: float = 0.0
    state: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Retired:
    """A checkpoint that retention removed."""

    global_step: int
    path: Path
    commit_sha256: str | None


def _train(image: CheckpointImage) -> bytes:
    """The bytes of train.json, the only document of an image; empty if it has none."""
    return next(iter(image.documents.values()), b"")


def _no_crash_point(name: str) -> None:
    """The default crash hook: does nothing."""


class CheckpointStore:
    """Writes and chooses checkpoints under one `checkpoints/` folder. `crash_point` is called at
    each of `names.CRASH_POINTS`.
    """

    def __init__(
        self,
        root: Path,
        config: StoreConfig | None = None,
        fs: Fs | None = None,
        crash_point: CrashHook = _no_crash_point,
    ) -> None:
        self.root, self.config, self.crash_point = root, config or StoreConfig(), crash_point
        self.fs = fs or (
            ThrottledFs(self.config.bytes_per_s) if self.config.bytes_per_s else PosixFs()
        )
        self._fencing = FencingToken(self.fs, root)
        self._pool = ThreadPoolExecutor(workers(), thread_name_prefix="hash")
        self._verified: dict[str, str] = {}
        self._held_from: int | None = None
        # why the last `update_pointers_and_retire` could not move the pointers
        self.pointer_error: StorageError | None = None

    def claim(self, attempt: int) -> None:
        """Create the folder, claim it for `attempt` (Fenced if a newer one has), remove leftovers
        of dead writers.
        """
        try:
            self.fs.mkdir(self.root)
        except StorageError as error:
            if error.errno != errno.EEXIST:
                raise
        # even if it exists: its creator may have died before this
        self.fs.fsyncdir(self.root.parent)
        self._fencing.claim(attempt)
        if self.config.holds:
            self._held_from = held_from(attempt, partial(launch_of, self.root.parent))
        self.sweep_leftovers()

    def save(self, image: CheckpointImage, attempt: int) -> Saved:
        """Commit `image`: returning is the acknowledgement. Raises StorageError (nothing was
        committed, the space is freed), CheckpointConflict (a different valid checkpoint has the
        name) or Fenced; saving the same state again is no error.
        """
        began = monotonic()
        self._fencing.check(attempt)
        previous, key = self._previous(image.stamp.global_step), self.config.integrity.hmac_key
        job = CommitJob(
            self.fs,
            self.root,
            self.config.mode,
            self.crash_point,
            self._pool,
            image,
            attempt,
            previous,
            key,
            self.config.digest,
        )
        installer: Installer = (
            SingleInstaller(job) if image.parts[0].name.startswith("step_") else GroupInstaller(job)
        )
        if (existing := self._existing(job, installer.target)) is not None:
            return replace(existing, commit_s=monotonic() - began)
        try:
            installer.build()
            self._fencing.check(attempt)
            try:
                installer.install()
            except StorageError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
                if (existing := self._existing(job, installer.target)) is not None:
                    return replace(existing, commit_s=monotonic() - began)
                installer.install()
            self._sync_installed(installer.target, attempt)
        except StorageError:
            self._fencing.check(attempt)  # prefer Fenced if a newer attempt has removed our stage
            raise
        finally:
            with suppress(StorageError):
                installer.undo(partial(self._owns, attempt))
        self.crash_point("after_root_sync")
        assert job.commit is not None and job.manifest is not None
        state = state_in(job.manifest, _train(image))
        self._verified[installer.target.name] = job.commit.self_sha256
        write_s, hash_s = job.files_at - job.began, job.hashed_at - job.files_at
        commit_s = monotonic() - began - write_s - hash_s
        return Saved(
            installer.target, job.commit.self_sha256, image.nbytes, write_s, commit_s, hash_s, state
        )

    def update_pointers_and_retire(
        self, saved: Saved, image: CheckpointImage
    ) -> tuple[Retired, ...]:
        """After the acknowledgement: update the pointers, then apply retention. Errors here do not
        make the saved checkpoint a failed one.
        """
        self.crash_point("before_pointer")
        self.pointer_error = None
        try:
            self.point(
                saved.path,
                {
                    "epoch": image.stamp.epoch,
                    "global_step": image.stamp.global_step,
                    "world_size": image.stamp.world_size,
                },
            )
        except StorageError as error:
            # pointers are only hints, and on a full disk retention must still run
            self.pointer_error = error
        self.crash_point("after_pointer")
        return self.retire()

    def point(self, path: Path, facts: dict[str, int]) -> None:
        """Point latest.json and latest_ok to `path`. They are hints: recovery lists the folder."""
        document = {"path": path.name, **facts, "timestamp": wall()}
        text = (json.dumps(document, sort_keys=True) + "\n").encode()
        with ready_to_replace(self.fs, self.root / LATEST, text, self.config.mode):
            self.crash_point("before_pointer_rename")
        self.crash_point("between_pointers")
        with ready_to_link(self.fs, self.root / LATEST_OK, path.name):
            self.crash_point("before_link_rename")
        self.crash_point("before_pointer_sync")
        self._sync(self.root)

    def retire(self) -> tuple[Retired, ...]:
        """Remove checkpoints older than the newest `keep` verified ones, but for what is held; with
        fewer verified ones, nothing. What cannot be removed stays; returns what was removed.
        """
        verified, retired, entries = 0, [], self.entries()
        first = self._held_from
        held = min((e.global_step for e in entries if first and e.global_step >= first), default=-1)
        for entry in entries:
            if verified >= max(2, self.config.keep):
                if entry.global_step == held:
                    continue
                gone = Retired(
                    entry.global_step,
                    entry.path,
                    self._verified.get(entry.path.name) or self._records(entry),
                )
                with suppress(StorageError):
                    self._trash(entry)
                    retired.append(gone)
            elif self._is_verified(entry):
                verified += 1
        return tuple(retired)

    def entries(self) -> list[CheckpointEntry]:
        """All files and folders with a checkpoint's name, newest first."""
        return catalog.entries(self.fs, self.root)

    def verify(self, path: Path) -> IntegrityReport:
        return verify_checkpoint(path, self.config.integrity, self.fs)

    def examine_once(self, path: Path) -> IntegrityReport:
        """Like `verify`, but hashes no byte twice."""
        return verify_checkpoint(path, self.config.integrity, self.fs, once=True)

    def newest_valid(self) -> ResumeChoice:
        """The newest checkpoint that passes the integrity check, and the newer rejected ones.
        Changes nothing.
        """
        return catalog.newest_valid(self.fs, self.root, self.verify)

    def quarantine(self, path: Path) -> tuple[Path, ...]:
        """Rename a rejected checkpoint to `.rejected_*`, so that its step can be saved again;
        returns the new paths.
        """
        moved = catalog.quarantine(self.fs, entry_of(path))
        self._verified.pop(path.name, None)
        self._sync(self.root)
        return moved

    def reconcile(self, global_step: int, attempt: int) -> IntegrityReport | None:
        """The valid checkpoint of `global_step` that `attempt` wrote, or None: to reconcile the log
        after a writer died.
        """
        reports = (
            self.verify(entry.path) for entry in self.entries() if entry.global_step == global_step
        )
        return next((report for report in reports if report.ok and report.attempt == attempt), None)

    def sweep_leftovers(self) -> None:
        """Remove stages, trash and temporary files of dead writers. Only the owner of the store may
        call it.
        """
        catalog.discard(self.fs, catalog.leftovers(self.fs, self.root))

    def close(self) -> None:
        self._pool.shutdown(wait=True)

    def _existing(self, job: CommitJob, target: Path) -> Saved | None:
        """If the name is taken: the same state counts as saved, another valid one raises
        CheckpointConflict, anything else is quarantined.
        """
        entry = entry_of(target)
        if not any(self._exists(path) for path in entry.files):
            return None
        report = self.verify(target)
        if report.unread is not None and report.unread.errno not in _MISSING:
            raise report.unread  # it may be an acknowledged checkpoint: unreadable is not damaged
        if report.manifest is None or not report.ok:
            self.quarantine(target)
            return None
        if job.manifest is None:
            job.records(job.hasher().entries())
        if job.manifest is None or not same_state(report, job):
            fact = f"{target.name} of attempt {report.attempt} holds another state"
            raise CheckpointConflict("checkpoints", fact, "nothing was overwritten; verify the run")
        assert report.commit_sha256 is not None
        state = state_in(report.manifest, report.train)
        return Saved(target, report.commit_sha256, job.image.nbytes, 0.0, 0.0, state=state)

    def _owns(self, attempt: int) -> bool:
        try:
            self._fencing.check(attempt)
        except Fenced:
            return False
        return True

    def _previous(self, step: int) -> str | None:
        """The commit to name as predecessor: that of the newest older checkpoint with valid records
        and sizes, or None.
        """
        for entry in self.entries():
            if entry.global_step < step and (sha := self._records(entry)) is not None:
                return sha
        return None

    def _is_verified(self, entry: CheckpointEntry) -> bool:
        """Whether it is valid: fully verified the first time (not if this store wrote it),
        afterwards by its records and sizes.
        """
        known = self._verified.get(entry.path.name)
        if known is not None:
            return self._records(entry) == known
        report = self.verify(entry.path)
        if report.ok and report.commit_sha256:
            self._verified[entry.path.name] = report.commit_sha256
        return report.ok

    def _records(self, entry: CheckpointEntry) -> str | None:
        report = verify_checkpoint(
            entry.path, replace(self.config.integrity, contents=False), self.fs
        )
        return report.commit_sha256 if report.ok else None

    def _trash(self, entry: CheckpointEntry) -> None:
        self.crash_point("before_trash")
        moved = catalog.quarantine(self.fs, entry, TRASH_PREFIX)
        self.crash_point("half_trash")
        catalog.discard(self.fs, moved)
        self._verified.pop(entry.path.name, None)
        self.crash_point("after_trash")

    def _exists(self, path: Path) -> bool:
        try:
            self.fs.stat(path)
        except StorageError as error:
            if error.errno == errno.ENOENT:
                return False
            raise
        return True

    def _sync_installed(self, target: Path, attempt: int) -> None:
        """Make the name durable. If that fails, remove it again: a checkpoint logged as failed must
        not be resumed from.
        """
        try:
            self._sync(self.root)
        except StorageError:
            self._fencing.check(attempt)  # a newer attempt may have chosen it already
            with suppress(StorageError):
                catalog.discard(
                    self.fs, catalog.quarantine(self.fs, entry_of(target), TRASH_PREFIX)
                )
            raise

    def _sync(self, folder: Path) -> None:
        if self.config.mode.sync_directories:
            self.fs.fsyncdir(folder)


def same_state(report: IntegrityReport, job: CommitJob) -> bool:
    """Whether both hold the same tensors. train.json may differ: it covers the attempt's own log
    lines.
    """
    assert report.manifest is not None and job.manifest is not None
    manifests = (report.manifest, job.manifest)
    one, other = (
        {name: entry for part in manifest.parts.values() for name, entry in part.tensors.items()}
        for manifest in manifests
    )
    return one == other
