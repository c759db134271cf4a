"""What a run may leave behind and must not: processes that work for it, objects in shared memory."""

from __future__ import annotations

import os
from pathlib import Path

from ecrl_cli.linux import processes

_SHARED = Path("/dev/shm")
_OURS = ("torch_", "gloo", "nccl")  # what torch calls its own; what we do has our name in it; the rest is other people's


def remaining(root: Path) -> list[int]:
    """The processes that still work for the run in `root`, this one excepted."""
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
    """Reap what a supervisor that was killed left to this process, its subreaper."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _is_dead_child(entry):
            processes.reap(int(entry.name))


def _is_dead_child(entry: Path) -> bool:
    try:
        fields = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] == "Z" and int(fields[1]) == os.getpid()
