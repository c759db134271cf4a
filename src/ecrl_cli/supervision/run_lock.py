"""One supervisor per run directory: an flock, which the kernel releases when its holder dies,
whatever the file contains.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ecrl_cli.errors import RecordError, RunHeld, StorageError
from ecrl_cli.linux.clock import monotonic, wall
from ecrl_cli.records.journal import read_json
from ecrl_cli.records.layout import RunLayout, StudyLayout, SweepLayout
from ecrl_cli.records.safe_read import parsed

_SAYS_SO_WITHIN_S = 0.5
_LOOKED_AT_S = 0.1  # whoever only asks whether the lock is held (`held`) has it for microseconds


class RunLock:
    """The held lock. `note` updates what others read about its holder."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._holder: dict[str, Any] = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": wall(),
            "attempt": None,
        }
        self.note(None)

    def note(self, attempt: int | None) -> None:
        """Write which attempt is running."""
        self._holder["attempt"] = attempt
        text = json.dumps(self._holder).encode()
        os.pwrite(self._fd, text, 0)
        os.ftruncate(self._fd, len(text))


@contextlib.contextmanager
def run_lock(layout: RunLayout | StudyLayout | SweepLayout) -> Iterator[RunLock]:
    """Hold the lock of the directory. RunHeld (exit 8), naming the holder, if another process holds
    it.
    """
    try:
        fd = os.open(
            layout.lock,
            os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK,
            0o600,
        )
    except OSError as error:
        raise StorageError.of("lock", layout.lock, error) from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise StorageError("lock", f"{layout.lock} is not a regular file", "remove it")
        _take(fd, layout)
        yield RunLock(fd)
    finally:
        os.close(fd)


def _take(fd: int, layout: RunLayout | StudyLayout | SweepLayout) -> None:
    deadline = monotonic() + _LOOKED_AT_S
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if monotonic() > deadline:
                raise RunHeld(
                    str(layout.root),
                    f"held by {_holder(fd)}",
                    "stop it or use another run directory",
                ) from error
        time.sleep(0.001)


def held(layout: RunLayout) -> bool:
    """Whether a command is at work in the run directory. Of a lock that this user cannot open:
    whether supervisor.json says that the run runs.
    """
    try:
        fd = os.open(layout.lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except PermissionError:
        return _says_running(layout)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return _says_running(layout)
    finally:
        os.close(fd)
    return False


def _says_running(layout: RunLayout) -> bool:
    try:
        document = read_json(layout.supervisor)
    except (RecordError, OSError):
        return False
    return isinstance(document, dict) and document.get("terminal_status") == "running"


def _holder(fd: int) -> str:
    """The holder as the file describes it: for the error message only, never for the decision.

    The file may still describe a dead predecessor; it is read again for up to _SAYS_SO_WITHIN_S
    until it names a living process.
    """
    deadline = monotonic() + _SAYS_SO_WITHIN_S
    while True:
        holder = _said(fd)
        if holder and (holder[0] != socket.gethostname() or Path(f"/proc/{holder[1]}").exists()):
            return f"pid {holder[1]} on {holder[0]}{holder[2]}"
        if monotonic() > deadline:
            return "another supervisor"
        time.sleep(0.005)


def _said(fd: int) -> tuple[str, int, str] | None:
    """Host, pid and attempt from the file; None if it has no valid content."""
    try:
        said = parsed(os.pread(fd, 4096, 0))
        host, pid, attempt = str(said["host"]), int(said["pid"]), said["attempt"]
        text = "" if attempt is None else f", attempt {int(attempt)}"
        return (host, pid, text) if len(host) < 200 and host.isprintable() else None
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None
