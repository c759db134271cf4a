"""Inspects the disk after every operation with the sound integrity check and byte by byte; results are cached by content."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ecrl_cli.checkpoint.store.catalog import CheckpointEntry
from ecrl_cli.checkpoint.store.integrity import IntegrityConfig, verify_checkpoint
from ecrl_cli.checkpoint.store.synthetic import RUN_ID
from ecrl_cli.errors import StorageError
from ecrl_cli.storage.fs import READ
from ecrl_cli.storage.memory_fs import ModelFs, Tree
from ecrl_cli.studies.store_soak.content import content_of
from ecrl_cli.studies.store_soak.model import Content

_GUARD = IntegrityConfig(run_id=RUN_ID)

Bytes = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class Seen:
    """A name that counts: its content, or why it is `refused`. `committed`: its commit record is whole. `wrong`: it passes and should not."""

    content: Content | None
    committed: bool
    refused: str
    wrong: str = ""


class Observer:
    def __init__(self, layout: str) -> None:
        self._layout = layout

    def look(self, disk: ModelFs, entry: CheckpointEntry) -> Seen:
        files = entry.files if entry.single else tuple(entry.path / name for name in disk.listdir(entry.path))
        return _examined(entry, self._layout, tuple((path.name, _bytes(disk, path)) for path in files))


def _bytes(disk: ModelFs, path: object) -> bytes | None:
    try:
        fd = disk.open(path, READ)  # type: ignore[arg-type]
    except StorageError:
        return None
    buffer = memoryview(bytearray(disk.fstat(fd).st_size))
    disk.read_at(fd, buffer, 0)
    disk.close(fd)
    return bytes(buffer)


@lru_cache(4096)
def _examined(entry: CheckpointEntry, layout: str, files: Bytes) -> Seen:
    held: dict[str, Tree] = {name: data for name, data in files if data is not None}
    root = entry.path.parent
    disk = ModelFs(root.parent, {root.name: held if entry.single else {entry.path.name: held}})
    report = verify_checkpoint(entry.path, _GUARD, disk)
    if not report.ok:
        return Seen(None, report.commit_sha256 is not None, f"{report.layer}: {report.reason}")
    content = content_of(report, disk, layout)
    return Seen(content, True, "", "" if content else f"silent_wrong: {entry.path.name} passes the integrity check and does not hold what was saved")
