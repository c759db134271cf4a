"""Saves onto a really full disk: a tmpfs with a given number of free pages or inodes. Needs Linux and root.

`python -m ecrl_cli.studies.io_errors.full_disk FOLDER` mounts in its own namespace, so nothing is left behind however it ends, and answers each
line of stdin (a Room as JSON) with one line: the result.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ecrl_cli.checkpoint.format.image import CheckpointImage
from ecrl_cli.checkpoint.format.names import STAGE_PREFIX, TRASH_PREFIX
from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.checkpoint.store.synthetic import synthetic_image, synthetic_plan
from ecrl_cli.errors import StorageError
from ecrl_cli.linux.namespaces import LIBC, check, private_mounts
from ecrl_cli.storage.writing import TEMPORARY
from ecrl_cli.studies.io_errors.operations import LATER, NEWEST, NEXT, Cell, plain

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


def reason_against() -> str:
    """Why this machine cannot run the arm; empty if it can."""
    code = "from ecrl_cli.linux.namespaces import private_mounts; private_mounts()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"no private mounts: {done.stderr.strip().splitlines()[-1][:100]}"


class FullDisk:
    """The study's handle of the saving process."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        scratch.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "ecrl_cli.studies.io_errors.full_disk", str(scratch)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def save(self, room: Room) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(room)) + "\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def close(self) -> None:
        self._process.communicate()
        self._scratch.rmdir()


def serve(folder: Path) -> None:
    private_mounts()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(_saved(folder, Room(**json.loads(line)))) + "\n")
        sys.stdout.flush()


def _saved(folder: Path, room: Room) -> dict[str, Any]:
    _mount(folder)
    try:
        return _attempt(folder, room)
    finally:
        check(LIBC.umount2(os.fsencode(folder), _MNT_DETACH), str(folder))


def _attempt(folder: Path, room: Room) -> dict[str, Any]:
    cell = Cell(room.layout, room.mode)
    store = CheckpointStore(folder / "checkpoints", cell.config)
    store.claim(0)
    store.save(_image(room.layout, room.payload, NEWEST), 0)
    before, descriptors, found = _used(folder), _descriptors(), {"call": "", "errno": 0, "line": "", "untyped": ""}
    _mount(folder, before, room)
    acknowledged = NEWEST
    try:
        store.save(_image(room.layout, room.payload, NEXT), 0)
        acknowledged = NEXT
    except StorageError as error:
        found |= {"call": error.key, "errno": error.errno, "line": plain(error.line().replace(str(folder), ""))}
    except Exception as error:  # unexpected exceptions are recorded as an outcome
        found |= {"untyped": f"{type(error).__name__}: {error}"}
    leaked, after = _descriptors() - descriptors, _used(folder)
    _mount(folder)
    recovered = _recovered(store)
    litter = [name for name in os.listdir(store.root) if name.startswith((STAGE_PREFIX, TRASH_PREFIX, TEMPORARY))]  # noqa: PTH208
    store.save(_image(room.layout, room.payload, LATER), 0)
    again = _recovered(store)
    store.close()
    kept = 0 if acknowledged == NEXT else after[0] - before[0]
    return found | {"acknowledged": acknowledged, "recovered": recovered, "again": again, "leaked": leaked, "litter": len(litter), "kept_pages": kept}


@cache
def _image(layout: str, payload: int, step: int) -> CheckpointImage:
    return synthetic_image(1, step, synthetic_plan(payload * 2 // 3, payload // 3, single=layout == "single"))


def _recovered(store: CheckpointStore) -> int:
    report = store.newest_valid().report
    return report.global_step or 0 if report else 0


def _used(folder: Path) -> tuple[int, int]:
    """Pages and inodes in use."""
    found = os.statvfs(folder)
    return (found.f_blocks - found.f_bfree) * found.f_frsize // PAGE, found.f_files - found.f_ffree


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def _mount(folder: Path, used: tuple[int, int] | None = None, room: Room | None = None) -> None:
    """Mount the disk, or resize it if mounted, so that `room` is left beside what is `used`."""
    pages, inodes = _ROOMY // PAGE, _MANY
    if used is not None and room is not None:
        pages, inodes = (pages, used[1] + room.left) if room.inodes else (used[0] + room.left, inodes)
    options = f"size={pages * PAGE},nr_inodes={inodes},mode=700".encode()
    flags = _MS_REMOUNT if os.path.ismount(folder) else 0
    check(LIBC.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", flags, options), str(folder))


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
