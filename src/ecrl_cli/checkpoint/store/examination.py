"""Examines the checkpoints of a run before it resumes: by their files, and by what its records know
of them; the newest one ahead, in a thread.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ecrl_cli.checkpoint.store.catalog import CheckpointEntry
from ecrl_cli.checkpoint.store.integrity import IntegrityReport, verify_checkpoint
from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.errors import StorageError
from ecrl_cli.records.events import LOADER

Identity = tuple[tuple[str, int, int, int, int], ...]


@dataclass(frozen=True)
class Examination:
    """`acknowledged`: by step, the SHA-256 of the COMMIT that the records name. `one_pass`: the
    names of the checkpoints for which one pass over the files is enough. `unloadable`: by SHA-256
    of the COMMIT, why its checkpointer could not load it. `ahead`: may have verified one of them
    already.
    """

    store: CheckpointStore
    acknowledged: Mapping[int, str | None]
    one_pass: Collection[str]
    unloadable: Mapping[str, str]
    ahead: CheckpointPrevalidator | None = None

    def verify(self, path: Path) -> IntegrityReport:
        """The report on the checkpoint at `path`: not ok where its files are damaged, or where the
        records speak against it.
        """
        if path.stem not in self.one_pass:
            return self._reject_if_unloadable(
                self._reject_if_not_acknowledged(self.store.verify(path))
            )
        begun = self.ahead.take(path) if self.ahead else None
        return self._reject_if_unloadable(
            self._reject_if_not_acknowledged(begun or self.store.examine_once(path))
        )

    def _reject_if_not_acknowledged(self, report: IntegrityReport) -> IntegrityReport:
        """`report`, rejected if it is valid but not the checkpoint that was acknowledged at its
        step: another one was put in its place.
        """
        step = report.global_step or 0
        if (
            not report.ok
            or step not in self.acknowledged
            or self.acknowledged[step] == report.commit_sha256
        ):
            return report
        return replace(
            report, ok=False, layer="commit", reason="is not the checkpoint that was acknowledged"
        )

    def _reject_if_unloadable(self, report: IntegrityReport) -> IntegrityReport:
        """`report`, rejected if the checkpointer that wrote it could not load it."""
        reason = self.unloadable.get(report.commit_sha256 or "")
        return (
            replace(report, ok=False, layer=LOADER, reason=reason)
            if report.ok and reason
            else report
        )


class CheckpointPrevalidator:
    """Verifies the newest checkpoint in a thread while survivors still leave a failed attempt: one
    at a time. Each result can be taken once.
    """

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._pool = ThreadPoolExecutor(1, "look-ahead")
        self._begun: tuple[CheckpointEntry, Identity, Future[IntegrityReport]] | None = None

    def begin(self) -> None:
        """Start verifying the newest checkpoint, unless a result is pending. Errors are ignored:
        the checkpoint is then verified later, as usual.
        """
        with suppress(StorageError, OSError):
            newest = next(iter(self._store.entries()), None) if self._begun is None else None
            if newest:
                identity = _identity(newest)
                self._begun = (
                    newest,
                    identity,
                    self._pool.submit(
                        verify_checkpoint, newest.path, self._store.config.integrity, once=True
                    ),
                )

    def take(self, path: Path) -> IntegrityReport | None:
        """The report on the checkpoint at `path`; None if another one was verified, or its files
        have changed since.
        """
        begun, self._begun = self._begun, None
        with suppress(OSError):
            if begun and begun[0].path == path and begun[1] == _identity(begun[0]):
                return begun[2].result()
        return None

    def close(self) -> None:
        self._pool.shutdown()


def _identity(entry: CheckpointEntry) -> Identity:
    """Name, inode, size and times of all files of the checkpoint: changes when any of them is
    written or replaced.
    """
    found = [
        inner
        for path in entry.files
        for inner in ([path, *path.iterdir()] if path.is_dir() else [path])
    ]
    return tuple(
        (path.name, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns)
        for path in sorted(found)
        for at in [path.stat()]
    )
