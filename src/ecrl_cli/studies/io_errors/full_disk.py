"""Saves onto a really full disk: a tmpfs with a given number of free pages or inodes. Needs Linux
and root.

`python -m ecrl_cli.studies.io_errors.full_disk FOLDER` mounts in its own namespace, so nothing is
left behind however it ends, and answers each line of stdin (a Room as JSON) with one line: the
result.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.errors import StorageError
from ecrl_cli.linux.namespaces import LIBC, check, private_mounts
from ecrl_cli.studies.frame.child import JsonProgram, serve
from ecrl_cli.studies.frame.limits import open_descriptors
from ecrl_cli.studies.frame.store_fixture import Payload, litter, recovered_step, store_config
from ecrl_cli.studies.io_errors.operations import LATER, NEWEST, NEXT, plain

PAGE = os.sysconf("SC_PAGE_SIZE")
_MS_REMOUNT, _MNT_DETACH = 32, 2
_ROOMY, _MANY = 256 * 2**20, 10_000


@dataclass(frozen=True)
class Room:
    """A save of `payload` bytes into a disk with `left` free pages, or with `left` free inodes."""

    layout: str
    mode: str
    payload: int
    left: int
    inodes: bool = False


class FullDiskProgram(JsonProgram):
    """The study's handle of the saving process."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        scratch.mkdir(exist_ok=True)
        super().__init__("ecrl_cli.studies.io_errors.full_disk", str(scratch))

    def save(self, room: Room) -> dict[str, Any]:
        return self.ask(asdict(room))

    def close(self, *, kill: bool = False) -> None:
        super().close(kill=kill)
        self._scratch.rmdir()


def _saved(folder: Path, room: Room) -> dict[str, Any]:
    _mount(folder)
    try:
        return _attempt(folder, room)
    finally:
        check(LIBC.umount2(os.fsencode(folder), _MNT_DETACH), str(folder))


def _attempt(folder: Path, room: Room) -> dict[str, Any]:
    payload = Payload(1, room.payload * 2 // 3, room.payload // 3)
    store = CheckpointStore(folder / "checkpoints", store_config(room.mode))
    store.claim(0)
    store.save(payload.image(room.layout, NEWEST), 0)
    before, descriptors, found = (
        _used(folder),
        open_descriptors(),
        {"call": "", "errno": 0, "line": "", "untyped": ""},
    )
    _mount(folder, before, room)
    acknowledged = NEWEST
    try:
        store.save(payload.image(room.layout, NEXT), 0)
        acknowledged = NEXT
    except StorageError as error:
        found |= {
            "call": error.key,
            "errno": error.errno,
            "line": plain(error.line().replace(str(folder), "")),
        }
    except Exception as error:  # unexpected exceptions are recorded as an outcome
        found |= {"untyped": f"{type(error).__name__}: {error}"}
    leaked, after = open_descriptors() - descriptors, _used(folder)
    _mount(folder)
    recovered = recovered_step(store)
    left = litter(path.name for path in store.root.iterdir())
    store.save(payload.image(room.layout, LATER), 0)
    again = recovered_step(store)
    store.close()
    kept = 0 if acknowledged == NEXT else after[0] - before[0]
    return found | {
        "acknowledged": acknowledged,
        "recovered": recovered,
        "again": again,
        "leaked": leaked,
        "litter": len(left),
        "kept_pages": kept,
    }


def _used(folder: Path) -> tuple[int, int]:
    """Pages and inodes in use."""
    found = os.statvfs(folder)
    return (found.f_blocks - found.f_bfree) * found.f_frsize // PAGE, found.f_files - found.f_ffree


def _mount(folder: Path, used: tuple[int, int] | None = None, room: Room | None = None) -> None:
    """Mount the disk, or resize it if mounted, so that `room` is left beside what is `used`."""
    pages, inodes = _ROOMY // PAGE, _MANY
    if used is not None and room is not None:
        pages, inodes = (
            (pages, used[1] + room.left) if room.inodes else (used[0] + room.left, inodes)
        )
    options = f"size={pages * PAGE},nr_inodes={inodes},mode=700".encode()
    flags = _MS_REMOUNT if os.path.ismount(folder) else 0
    check(LIBC.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", flags, options), str(folder))


if __name__ == "__main__":
    private_mounts()
    serve(lambda room: _saved(Path(sys.argv[1]), Room(**room)))
