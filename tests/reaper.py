"""Ends what an interrupted test run leaves: `python -I -S reaper.py PID MARK FOLDER` waits until
process PID is gone, then kills every process that was started below it and removes FOLDER. However
PID ends, SIGKILL included. Standard library only.

Each pytest session puts a mark of its own into its environment, which everything that it starts
inherits, and by which this finds it again.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

# environment variable: the folder in which a test leaves its name while it runs
RUNNING = "ECRL_TEST_RUNNING"
CLEANUP_S = 3.0  # for what ends by itself, and removes its files, when who started it is gone
PATIENCE_S = 10.0


def marked(mark: str) -> list[int]:
    """Every living process with `mark` in the environment that it began with, this one excepted."""
    entry, found = mark.encode() + b"=1", []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            lives = b") Z " not in (folder / "stat").read_bytes()
            if (
                lives
                and entry in (folder / "environ").read_bytes().split(b"\0")
                and int(folder.name) != os.getpid()
            ):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def kill(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            continue


def is_worker(pid: int) -> bool:
    """Whether it is a pytest-xdist worker, by its command line: execnet's."""
    try:
        return b"sys.stdin.readline()" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def until_none(look: Callable[[], list[int]], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while look():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.01)
    return True


def end_all(mark: str) -> None:
    """Workers first: what they started and what cleans up when they are gone has CLEANUP_S for
    it.
    """
    kill([pid for pid in marked(mark) if is_worker(pid)])
    if not until_none(lambda: marked(mark), CLEANUP_S):
        # again and again: one may just be starting another
        until_none(lambda: kill(found := marked(mark)) or found, PATIENCE_S)


def main(pid: int, mark: str, folder: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    gone = os.pidfd_open(pid)
    if os.getppid() == pid:
        os.write(1, b"ready\n")
        select.select([gone], [], [])
    end_all(mark)
    for _ in range(50):  # what is just ending may still write into it
        shutil.rmtree(folder, ignore_errors=True)
        if not os.access(folder, os.F_OK):
            break
        time.sleep(0.1)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
