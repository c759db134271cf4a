"""Linux process primitives: adopt orphans, wait for and kill processes by pidfd, read how they
ended.

A pid can be reused by another process; a pidfd cannot. Nothing here kills by pid or by name.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import struct
import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from ecrl_cli.linux.clock import monotonic

PR_SET_CHILD_SUBREAPER = 36
_EXIT_CODE_FIELD = 52  # of /proc/PID/stat, counted from 1; proc(5)
# linux/pidfd.h: struct pidfd_info begins with a mask (u64) and has the wait status (s32) at byte
# 60; since Linux 6.15.
_PIDFD_GET_INFO, _PIDFD_INFO_EXIT, _PIDFD_INFO = 0xC040FF0B, 1 << 3, struct.Struct("<Q52xi")
_PF_EXITING = 0x4  # linux/sched.h


def become_subreaper() -> None:
    """Make this process the parent of its descendants' orphans from now on, so that it can reap
    them.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def open_pidfd(pid: int) -> int | None:
    """A pidfd of process `pid`, readable once it has ended; None if there is no such process."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def kill(pidfd: int) -> None:
    """Send SIGKILL; does nothing if the process has ended."""
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def send(pid: int, number: int) -> None:
    """Send signal `number` to `pid` through a pidfd, which cannot hit a process that reused the
    pid; does nothing if it has ended.
    """
    if (pidfd := open_pidfd(pid)) is not None:
        try:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, number)
        finally:
            os.close(pidfd)


def ended(pidfd: int) -> bool:
    """Whether the process has ended, reaped or not."""
    return not wait_all([pidfd], 0.0)


def wait_all(pidfds: Iterable[int], seconds: float) -> list[int]:
    """Wait at most `seconds` until all processes have ended; returns the pidfds of those that have
    not.
    """
    waiting, deadline = set(pidfds), monotonic() + seconds
    poll = select.poll()
    for fd in waiting:
        poll.register(fd, select.POLLIN)
    while waiting:
        left = deadline - monotonic()
        ready = poll.poll(max(0.0, left) * 1000)
        for fd, _ in ready:
            poll.unregister(fd)
            waiting.discard(fd)
        if not ready and left <= 0:
            break
    return sorted(waiting)


def peek(pid: int, pidfd: int) -> int | None:
    """The wait status of an ended process that is another process's child. None if it cannot be
    known: before Linux 6.15, once its parent has reaped it.
    """
    info = bytearray(_PIDFD_INFO.pack(_PIDFD_INFO_EXIT, 0))
    with contextlib.suppress(OSError):
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info)
        mask, status = _PIDFD_INFO.unpack(info)
        if mask & _PIDFD_INFO_EXIT:
            return int(status)
    fields = _stat(pid)
    return int(fields[_EXIT_CODE_FIELD - 3]) if fields and fields[0] == "Z" else None


def state(pid: int) -> str:
    """The state letter of process `pid` as in proc(5): R, S, D, T, Z ...; empty if there is no such
    process.
    """
    return (_stat(pid) or [""])[0]


def exiting(pid: int) -> bool:
    """Whether `pid` is exiting (PF_EXITING): it has not ended yet, but its sockets may be closed
    already.
    """
    return bool(int((_stat(pid) or [""] * 6 + ["0"])[6]) & _PF_EXITING)


def parent(pid: int) -> int:
    """The parent's pid of process `pid`; 0 if there is no such process."""
    return int((_stat(pid) or ["", "0"])[1])


def reap(pid: int) -> int | None:
    """The wait status of child `pid` if it has ended and has not been reaped; None otherwise."""
    try:
        reaped, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return status if reaped else None


def reap_group(group: int) -> None:
    """Reap all children in process group `group`, all of which have been killed. Blocks until they
    have ended.
    """
    while True:
        try:
            os.waitpid(-group, 0)
        except ChildProcessError:
            return


def split(status: int) -> tuple[int | None, int | None]:
    """(exit code, signal) of a wait status; exactly one of them is not None."""
    return (None, os.WTERMSIG(status)) if os.WIFSIGNALED(status) else (os.WEXITSTATUS(status), None)


def print_to(path: Path) -> None:
    """Append this process's standard output and error to the file `path` from now on."""
    sys.stdout.flush()
    sys.stderr.flush()
    output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)


def tagged(marker: str) -> Callable[[int], bool]:
    """A predicate on pids: whether the process was started with `marker` (NAME=value) in its
    environment.
    """
    wanted = marker.encode()
    return lambda pid: wanted in _read(f"/proc/{pid}/environ").split(b"\0")


def printing_to(prefix: str) -> Callable[[int], bool]:
    """A predicate on pids: whether the process's standard output is a file whose path starts with
    `prefix`.
    """

    def belongs(pid: int) -> bool:
        try:
            return str(Path(f"/proc/{pid}/fd/1").readlink()).startswith(prefix)
        except OSError:
            return False

    return belongs


def of_run(root: Path) -> Callable[[int], bool]:
    """A predicate on pids: whether the process belongs to the run in `root`.

    It is tagged with ECRL_RUN, or its standard output goes to the run's logs: a rank forked from a
    zygote, which serves several runs, has no tag.
    """
    by_tag, by_output = tagged(f"ECRL_RUN={root}"), printing_to(f"{root}/logs/attempt-")
    return lambda pid: by_tag(pid) or by_output(pid)


def sweep(
    belongs: Callable[[int], bool], spared: Collection[int] = (), seconds: float = 2.0
) -> list[int]:
    """Kill every process that `belongs` except this one and `spared`; reap those that are our
    children. Waits at most `seconds`. Returns the pids found.
    """
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    found = [pid for pid in pids if pid != os.getpid() and pid not in spared and belongs(pid)]
    pidfds = {pid: fd for pid in found if (fd := open_pidfd(pid)) is not None}
    # A pid may have been reused between the listing and open_pidfd: check again before the kill.
    for pid, fd in pidfds.items():
        if belongs(pid):
            kill(fd)
    wait_all(pidfds.values(), seconds)
    for pid, fd in pidfds.items():
        reap(pid)
        os.close(fd)
    return found


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on; the second is the process's name, which may
    contain spaces and brackets.
    """
    return _read(f"/proc/{pid}/stat").decode(errors="replace").rpartition(")")[2].split()
