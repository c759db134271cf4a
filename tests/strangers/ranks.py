"""A stand-in for torchrun whose ranks are forks of it: `python ranks.py RANKS SCRIPT ...`, in a
process that has imported torch.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path

from ecrl.warm import State, run

_OTHERS_S = 1.0  # how long the other ranks live when one has failed, as under a launcher


def main(ranks: int, words: list[str]) -> int:
    state = State(b"")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    alive = []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            become(rank, ranks, port)
            state.give()
            sys.argv = list(words)
            sys.path[0] = str(Path(words[0]).resolve().parent)
            run(words[0])
            return 0
        alive.append(pid)
    return int(failed(alive) != 0)


def become(rank: int, ranks: int, port: int) -> None:
    """The process of one rank, as a launcher starts it."""
    os.setsid()
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "TORCHELASTIC_RESTART_COUNT": "0"}
    os.environ |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def failed(alive: list[int]) -> int:
    """Exit code of the first process that failed, or minus its signal; 0 if none did."""
    code, deadline = 0, float("inf")
    while alive:
        for pid in list(alive):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                alive.remove(pid)
                if status and not code:
                    code = os.waitstatus_to_exitcode(status)
                    deadline = time.monotonic() + _OTHERS_S
        if time.monotonic() > deadline:
            for pid in alive:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
