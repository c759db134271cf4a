"""One supervisor per run directory: an flock, which the kernel releases when its holder dies, whatever the file says."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from typing import Any

from ecrl_cli.errors import RunHeld
from ecrl_cli.records.clock import wall
from ecrl_cli.records.layout import RunLayout, StudyLayout


class RunLock:
    """The held lock; `note` keeps what others read about its holder up to date."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._holder: dict[str, Any] = {"pid": os.getpid(), "host": socket.gethostname(), "since": wall(), "attempt": None}
        self.note(None)

    def note(self, attempt: int | None) -> None:
        """Say which attempt is running."""
        self._holder["attempt"] = attempt
        text = json.dumps(self._holder).encode()
        os.pwrite(self._fd, text, 0)
        os.ftruncate(self._fd, len(text))


@contextlib.contextmanager
def held(layout: RunLayout | StudyLayout) -> Iterator[RunLock]:
    """Hold the run directory; RunHeld (exit 8) where another supervisor does, naming it."""
    fd = os.open(layout.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunHeld(str(layout.root), f"held by {_holder(fd)}", "stop it or use another run directory") from error
        yield RunLock(fd)
    finally:
        os.close(fd)


def _holder(fd: int) -> str:
    """Who holds it, by its own word: for the message only, never for the decision."""
    try:
        said = json.loads(os.pread(fd, 4096, 0))
        attempt = "" if said["attempt"] is None else f", attempt {said['attempt']}"
        return f"pid {said['pid']} on {said['host']}{attempt}"
    except (ValueError, KeyError, TypeError):
        return "another supervisor"
