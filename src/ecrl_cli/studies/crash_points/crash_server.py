"""`python -m ecrl_cli.studies.crash_points.crash_server FOLDER`: forks the processes to be killed,
and reports how each one ended.

A separate process, because a fork copies held locks of threads: this one has no threads. It has
imported what its children need, so a child costs a millisecond. FOLDER is where trials lie:
`memory` (a folder in memory is made, and removed at the end, also if the study is killed) or a
given path. One JSON line is one request; the end of input ends it.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy  # noqa: F401  imported here once, where every forked child of its own would

import ecrl_cli.checkpoint.format.tensor_table  # noqa: F401  likewise
from ecrl_cli.linux.unix_socket import listen
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.studies.crash_points.crash_targets import (
    CrashPointCounter,
    Save,
    limit_life,
    save_back_to_back,
    save_once,
)
from ecrl_cli.studies.crash_points.crash_targets import serve as serve_writer
from ecrl_cli.studies.crash_points.store_fixture import BACK_TO_BACK
from ecrl_cli.studies.frame.child import say, serve
from ecrl_cli.studies.frame.store_fixture import Payload

MEMORY = Path("/dev/shm")
ROOM, CHECKPOINTS = 32 << 20, 100


def memory_there(payload_bytes: int = 0) -> bool:
    """Whether trials may lie in memory: containers often have little room there. A run with its
    history is several checkpoints of `payload_bytes`.
    """
    writable = MEMORY.is_dir() and os.access(MEMORY, os.W_OK)
    return writable and shutil.disk_usage(MEMORY).free >= max(ROOM, CHECKPOINTS * payload_bytes)


class Killer:
    """Forks and kills one child at a time."""

    def __init__(self, payload: Payload) -> None:
        self._payload, self._passed = payload, CrashPointCounter()
        self._writer = 0

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Handle `request`; returns the child's end: `signal` (0: it exited by itself, with `code`)
        and the point it `passed` last.
        """
        run, save = RunLayout(Path(request["root"])), Save(**request["save"])
        if request["do"] == "serve":
            return self.serve(run, save)
        if request["do"] == "end":
            return self.end()
        return (
            self.save(run, save)
            if request["do"] == "save"
            else self.kill(run, save, request["after_s"])
        )

    def save(self, run: RunLayout, save: Save) -> dict[str, Any]:
        self._payload.image(save.layout, save.step)  # imported once before the fork
        return self._ended(self._forked(lambda: save_once(run, save, self._payload, self._passed)))

    def serve(self, run: RunLayout, save: Save) -> dict[str, Any]:
        """Fork a background writer that listens; the request `end` stops it."""
        run.logs.mkdir(exist_ok=True)
        listener = listen(run.writer)
        self._writer = self._forked(lambda: serve_writer(run, save, self._passed, listener))
        listener.close()
        return {}

    def end(self) -> dict[str, Any]:
        os.kill(self._writer, signal.SIGKILL)
        ended, self._writer = self._ended(self._writer), 0
        return ended

    def close(self) -> None:
        """Kill a writer left by an interrupted study."""
        if self._writer:
            self.end()

    def kill(self, run: RunLayout, save: Save, after_s: float) -> dict[str, Any]:
        """Fork a child that saves back to back and kill it `after_s` seconds after its first
        save.
        """
        for number in range(BACK_TO_BACK):
            self._payload.image(save.layout, save.step + number)
        begun, begin = os.pipe()
        child = self._forked(
            lambda: save_back_to_back(run, save, self._payload, self._passed, begin)
        )
        os.close(begin)
        os.read(begun, 1)
        os.close(begun)
        time.sleep(after_s)
        os.kill(child, signal.SIGKILL)
        return self._ended(child)

    def _forked(self, work: Callable[[], None]) -> int:
        self._passed.reset()
        killer = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            limit_life(killer)
            work()
            os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        os._exit(1)

    def _ended(self, pid: int) -> dict[str, Any]:
        status = os.waitpid(pid, 0)[1]
        signalled = os.WIFSIGNALED(status)
        return {
            "signal": os.WTERMSIG(status) if signalled else 0,
            "code": 0 if signalled else os.WEXITSTATUS(status),
            "passed": self._passed.last,
        }


def main(argv: list[str]) -> None:
    # SIGINT is handled by the study, which closes our input
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    memory = argv[0] == "memory"
    folder = Path(tempfile.mkdtemp(prefix="crash-points-", dir=MEMORY)) if memory else Path(argv[0])
    killer = Killer(Payload(*map(int, argv[1:4])))
    try:
        say({"folder": str(folder)})
        gc.freeze()
        serve(killer.answer)
    finally:
        killer.close()
        if memory:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
