"""Verifies the newest checkpoint in the background while surviving ranks still leave a failed attempt."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from ecrl_cli.checkpoint.store.catalog import CheckpointEntry
from ecrl_cli.checkpoint.store.integrity import IntegrityReport
from ecrl_cli.checkpoint.store.integrity_one_pass import examine_once
from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.errors import StorageError

Identity = tuple[tuple[str, int, int, int, int], ...]


class CheckpointPrevalidator:
    """Verifies one checkpoint at a time in a thread. Each result can be taken once."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._pool = ThreadPoolExecutor(1, "look-ahead")
        self._begun: tuple[CheckpointEntry, Identity, Future[IntegrityReport]] | None = None

    def begin(self) -> None:
        """Start verifying the newest checkpoint, unless a result is pending. Errors are ignored: the checkpoint is then verified later, as usual."""
        with suppress(StorageError, OSError):
            newest = next(iter(self._store.entries()), None) if self._begun is None else None
            if newest:
                identity = _identity(newest)
                self._begun = (newest, identity, self._pool.submit(examine_once, newest.path, self._store.config.integrity))

    def take(self, path: Path) -> IntegrityReport | None:
        """The report on the checkpoint at `path`; None if another one was verified, or its files have changed since."""
        begun, self._begun = self._begun, None
        with suppress(OSError):
            if begun and begun[0].path == path and begun[1] == _identity(begun[0]):
                return begun[2].result()
        return None

    def close(self) -> None:
        self._pool.shutdown()


def _identity(entry: CheckpointEntry) -> Identity:
    """Name, inode, size and times of all files of the checkpoint: changes when any of them is written or replaced."""
    found = [inner for path in entry.files for inner in ([path, *path.iterdir()] if path.is_dir() else [path])]
    return tuple((path.name, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns) for path in sorted(found) for at in [path.stat()])
