"""Failing syncs by the kernel: strace injects EIO into the K-th fsync of a real process that saves
on the real file system.

`python -m ecrl_cli.studies.io_errors.strace_faults ROOT LAYOUT MODE` is that process: it saves one
checkpoint into a store that has one already, and prints the result.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.errors import StorageError
from ecrl_cli.studies.frame.limits import open_descriptors
from ecrl_cli.studies.frame.store_fixture import Payload, litter, recovered_step
from ecrl_cli.studies.io_errors.operations import LATER, NEWEST, NEXT, StoreSetup

# Over a megabyte, so that parts are written as large ones: bypassing the page cache where the file
# system allows it.
_PAYLOAD = Payload(1, 3 * 2**20 // 2, 2**19)
_SYNC = re.compile(r"^(?:\d+ +)?fsync\(\d+<([^>]*)>.*= (-?\d+)")


def refused_save(folder: Path, cell: StoreSetup, at: int, sticky: bool) -> dict[str, Any]:
    """A save whose `at`-th fsync fails (with `sticky`, all later ones too), and the resulting state
    of the store.
    """
    root, log = folder / "checkpoints", folder / "strace.log"
    folder.mkdir()
    try:
        store = CheckpointStore(root, cell.config)
        store.claim(0)
        store.save(_PAYLOAD.image(cell.layout, NEWEST), 0)
        said = _under_strace(
            root, cell, f"inject=fsync:error=EIO:when={at}{'+' if sticky else ''}", log
        )
        synced = _synced(log)
        left = litter(path.name for path in root.iterdir())
        recovered = recovered_step(store)
        store.save(_PAYLOAD.image(cell.layout, LATER), 0)
        state = {"recovered": recovered, "again": recovered_step(store), "litter": len(left)}
        store.close()
        return (
            said
            | state
            | {
                "refused": sum(result < 0 for _, result in synced),
                "retried": _retried(synced),
            }
        )
    finally:
        shutil.rmtree(folder)


def _under_strace(root: Path, cell: StoreSetup, inject: str, log: Path) -> dict[str, Any]:
    saver = [
        sys.executable,
        "-m",
        "ecrl_cli.studies.io_errors.strace_faults",
        str(root),
        cell.layout,
        cell.mode,
    ]
    command = [
        "strace",
        "-f",
        "--seccomp-bpf",
        "-y",
        "-o",
        str(log),
        "-e",
        "trace=fsync,fdatasync",
        "-e",
        inject,
        *saver,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        tail = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        return {
            "acknowledged": 0,
            "call": "",
            "errno": 0,
            "line": "",
            "untyped": tail[:200],
            "leaked": 0,
        }
    return found


def _synced(log: Path) -> list[tuple[str, int]]:
    """Every fsync in the log: the path, and the result (negative: failed)."""
    found = (_SYNC.match(line) for line in log.read_text(encoding="utf-8").splitlines())
    return [(match[1], int(match[2])) for match in found if match]


def _retried(synced: list[tuple[str, int]]) -> int:
    """Number of files synced again after a failed sync; folders are excluded, as they may be synced
    for another name.
    """
    files = [(path, result) for path, result in synced if Path(path).suffix]
    refused = {path for path, result in files if result < 0}
    return sum(
        count > 1 for path, count in Counter(path for path, _ in files).items() if path in refused
    )


def main(root: Path, cell: StoreSetup) -> dict[str, Any]:
    store, image = CheckpointStore(root, cell.config), _PAYLOAD.image(cell.layout, NEXT)
    found = {"acknowledged": NEWEST, "call": "", "errno": 0, "line": "", "untyped": ""}
    before = open_descriptors()
    try:
        store.save(image, 0)
        found |= {"acknowledged": NEXT}
    except StorageError as error:
        found |= {"call": error.key, "errno": error.errno, "line": error.line()}
    leaked = open_descriptors() - before
    store.close()
    return found | {"leaked": leaked}


if __name__ == "__main__":
    sys.stdout.write(
        json.dumps(main(Path(sys.argv[1]), StoreSetup(sys.argv[2], sys.argv[3]))) + "\n"
    )
