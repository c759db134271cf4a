"""Who died first, where a peer's end follows from another's: real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable

import pytest

from ecrl_cli.linux import processes
from ecrl_cli.supervision.launch.launcher import RankTable
from tests.conftest import comes_true

# The thread that began the process has gone, another is in a system call: on its way out, and not
# over.
_HALF_GONE = """
import ctypes, os, platform, threading
threading.Thread(target=os.read, args=(0, 1)).start()
ctypes.CDLL(None).syscall({"x86_64": 60}.get(platform.machine(), 93), 0)
"""


def test_a_rank_on_its_way_out_is_noticed_with_the_peer_that_ended_because_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peer = subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"])
    dying = subprocess.Popen([sys.executable, "-c", _HALF_GONE], stdin=subprocess.PIPE)
    try:
        assert comes_true(lambda: processes.exiting(dying.pid))
        os.waitid(os.P_PID, peer.pid, os.WEXITED | os.WNOWAIT)
        ranks, wait_all = RankTable(), processes.wait_all
        for rank, process in enumerate((peer, dying)):
            ranks.add(rank, process.pid)

        def with_the_end(pidfds: Iterable[int], seconds: float) -> list[int]:
            """The end comes as soon as somebody waits for it."""
            if seconds:
                dying.kill()
            return wait_all(pidfds, seconds)

        monkeypatch.setattr(processes, "wait_all", with_the_end)
        over = ranks.newly_over()
        for rank in over:
            rank.status = processes.reap(rank.pid)
        ranks.notice([rank.exit() for rank in over])
        assert ranks.first is not None
        assert (ranks.first.rank, ranks.first.signal) == (1, signal.SIGKILL)
    finally:
        dying.kill()
        ranks.gather()
        for process in (peer, dying):  # reaped already: let them know
            process.communicate()
