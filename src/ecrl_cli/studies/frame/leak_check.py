"""What a run must not leave behind: its processes, and objects in shared memory."""

from __future__ import annotations

import os
from pathlib import Path

from ecrl_cli.linux import processes

_SHARED = Path("/dev/shm")
_OURS = ("torch_", "gloo", "nccl")  # torch's own prefixes; ours contain our name; other objects are unrelated


def remaining(root: Path) -> list[int]:
    """Processes still belonging to the run in `root`, without this one."""
    belongs = processes.of_run(root)
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if pid != os.getpid() and belongs(pid)]


def shared_memory() -> set[str]:
    """The names of this user's objects in shared memory."""
    found = set()
    for path in _SHARED.iterdir() if _SHARED.is_dir() else ():
        try:
            ours = "ecrl" in path.name or (path.name.startswith(_OURS) and path.is_file())
            if ours and path.lstat().st_uid == os.geteuid():
                found.add(path.name)
        except OSError:
            continue
    return found


def reap() -> None:
    """Reap the children that a killed supervisor left to this process, its subreaper."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _is_dead_child(entry):
            processes.reap(int(entry.name))


def _is_dead_child(entry: Path) -> bool:
    try:
        fields = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] == "Z" and int(fields[1]) == os.getpid()
