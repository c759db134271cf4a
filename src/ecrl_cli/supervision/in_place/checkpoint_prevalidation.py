"""A look at the newest checkpoint while those who outlived a death still leave: they wait for what comes of it."""

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
    """One look at a time, beside everything else; it is good for one question."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._pool = ThreadPoolExecutor(1, "look-ahead")
        self._begun: tuple[CheckpointEntry, Identity, Future[IntegrityReport]] | None = None

    def begin(self) -> None:
        """Look at what is newest now, unless a look is on its way. Where that fails nothing is known ahead."""
        with suppress(StorageError, OSError):
            newest = next(iter(self._store.entries()), None) if self._begun is None else None
            if newest:
                identity = _identity(newest)
                self._begun = (newest, identity, self._pool.submit(examine_once, newest.path, self._store.config.integrity))

    def take(self, path: Path) -> IntegrityReport | None:
        """What was found, if that was of `path` and its files are as they were before."""
        begun, self._begun = self._begun, None
        with suppress(OSError):
            if begun and begun[0].path == path and begun[1] == _identity(begun[0]):
                return begun[2].result()
        return None

    def close(self) -> None:
        self._pool.shutdown()


def _identity(entry: CheckpointEntry) -> Identity:
    """Changes with whatever is written to any of its files, or put in its place."""
    found = [inner for path in entry.files for inner in ([path, *path.iterdir()] if path.is_dir() else [path])]
    return tuple((path.name, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns) for path in sorted(found) for at in [path.stat()])
