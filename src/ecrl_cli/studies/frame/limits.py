"""Limits of a trial: it must not run longer than its deadline, nor leave processes or objects in
shared memory behind.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import psutil

from ecrl_cli.linux import processes

_SIGNAL, _AGAIN_S = signal.SIGUSR2, 0.2


class Overdue(BaseException):
    """A trial timed out. Not an Exception, so that the code under test cannot catch it."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Main thread only. After `seconds` the block is interrupted, all descendants of this process
    are killed until the block is left, and Overdue is raised, even if the block completed because
    of that.
    """
    over, late, main = threading.Event(), threading.Event(), threading.get_ident()

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Overdue(f"not over after {seconds:g} s")

    def watch() -> None:
        if over.wait(seconds):
            return
        late.set()
        signal.pthread_kill(main, _SIGNAL)
        while not over.wait(_AGAIN_S):
            _kill_below()

    before, watcher = signal.signal(_SIGNAL, interrupt), threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException:
        if not late.is_set():
            raise
    finally:
        over.set()
        watcher.join()
        signal.signal(_SIGNAL, before)
    if late.is_set():
        raise Overdue(f"not over after {seconds:g} s")


def _kill_below() -> None:
    """SIGKILL to every descendant; their parents reap them."""
    for pid in psutil.pids():
        if _descends(pid) and (fd := processes.open_pidfd(pid)) is not None:
            if _descends(pid):  # the pid may have been reused before the pidfd was opened
                processes.kill(fd)
            os.close(fd)


def _descends(pid: int) -> bool:
    while (pid := processes.parent(pid)) > 1:
        if pid == os.getpid():
            return True
    return False


_SHARED = Path("/dev/shm")
# torch's own prefixes; ours contain our name; other objects are unrelated
_OURS = ("torch_", "gloo", "nccl")


def remaining(root: Path) -> list[int]:
    """Processes still belonging to the run in `root`, without this one."""
    belongs = processes.of_run(root)
    return [pid for pid in psutil.pids() if pid != os.getpid() and belongs(pid)]


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


def open_descriptors() -> int:
    """How many this process has open."""
    return psutil.Process().num_fds()


def reap() -> None:
    """Reap the children that a killed supervisor left to this process, its subreaper."""
    for child in psutil.Process().children():
        if processes.state(child.pid) == "Z":
            processes.reap(child.pid)
