"""A stand-in for python and torchrun that starts a job without importing torch again: a server has
imported it and forks each process. An audit starts its job a dozen times, and most of the time goes
into imports.

    python -m tests.strangers.warm SOCKET                      the server python -IS
    tests/strangers/warm.py SOCKET RANKS SCRIPT ... one attempt; RANKS 0: without a launcher

What differs from a real start: /proc shows the server's environment, so that processes which
outlive their attempt are not found, and a launcher's own behaviour is not tried.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_WARM = ("numpy", "torch", "torch.distributed", "torch.utils.data", "torch._dynamo")
_OTHERS_S = 1.0  # how long the other ranks live when one has failed, as under a launcher
_LEAVE_S = 300.0  # of one attempt


def attempt(path: str, ranks: int, words: list[str]) -> int:
    """Ask the server at `path` for one attempt, and end as it ended."""
    with socket.socket(socket.AF_UNIX) as asked:
        asked.connect(path)
        order = {
            "words": words,
            "ranks": ranks,
            "environment": dict(os.environ),
            "cwd": str(Path.cwd()),
        }
        socket.send_fds(asked, [b"f"], [0, 1, 2])
        asked.sendall(json.dumps(order).encode() + b"\n")
        status = int(asked.makefile().readline() or -signal.SIGKILL)
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
        os.kill(os.getpid(), -status)
    return status


def serve(path: str, modules: tuple[str, ...] = ()) -> None:
    """Fork a process for each connection, which starts and watches the ranks of one attempt.
    `modules` are imported beforehand too.
    """
    import gc
    import importlib

    for name in (*_WARM, *modules):
        importlib.import_module(name)
    gc.freeze()  # a collection would copy the pages that the forks share
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the watchers
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            connection, _ = server.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                server.close()
                _watch(connection)
                return
            connection.close()


def _watch(connection: socket.socket) -> None:
    _, descriptors, _, _ = socket.recv_fds(connection, 1, 3)
    order = json.loads(connection.makefile().readline())
    port, alive = _free_port(), []
    for rank in range(order["ranks"] or 1):
        pid = os.fork()
        if pid == 0:
            connection.close()
            _become(order, rank, port, descriptors)
            _run(order["words"])
            return
        alive.append(pid)
    status = _ended(connection, alive)
    if order["ranks"] and status:
        status = 1  # what a launcher makes of it
    with contextlib.suppress(OSError):
        connection.sendall(f"{status}\n".encode())
    os._exit(0)


def _ended(connection: socket.socket, alive: list[int]) -> int:
    """Exit code of the first process that failed, or minus its signal; 0 if none did."""
    failed, deadline = 0, time.monotonic() + _LEAVE_S
    while alive:
        for pid in list(alive):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                alive.remove(pid)
                code = os.waitstatus_to_exitcode(status)
                if code and not failed:
                    failed, deadline = code, time.monotonic() + _OTHERS_S
        if time.monotonic() > deadline or _gone(connection):
            for pid in alive:
                os.killpg(pid, signal.SIGKILL)
        time.sleep(0.01)
    return failed


def _gone(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _become(order: dict[str, object], rank: int, port: int, descriptors: list[int]) -> None:
    """The process of one rank, as a launcher would start it."""
    import random
    import runpy

    import numpy as np

    os.setsid()
    for place, descriptor in enumerate(descriptors):
        os.dup2(descriptor, place)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(order["environment"])  # type: ignore[call-overload]
    if ranks := order["ranks"]:
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "TORCHELASTIC_RESTART_COUNT": "0",
        }
        os.environ |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.chdir(str(order["cwd"]))
    random.seed()  # those of a new process are not the server's
    np.random.seed()
    sys.path[:0] = list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    if os.environ.get("ECRL_RECORD"):
        from ecrl.hooks import install

        install()
    elif others := _start_hook():
        runpy.run_path(str(others))


def _start_hook() -> Path | None:
    """The sitecustomize.py that a new interpreter would run: that of another tool."""
    folders = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return next((path for f in folders if (path := Path(f, "sitecustomize.py")).is_file()), None)


def _run(words: list[str]) -> None:
    """Run the script and end as an interpreter does, but for its slow last part: to take down
    torch.
    """
    import atexit
    import runpy
    import threading
    import traceback

    sys.argv, code = list(words), 1
    sys.path.insert(0, str(Path(words[0]).parent))
    try:
        runpy.run_path(words[0], run_name="__main__")
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            sys.stderr.write(f"{ended.code}\n")
    except BaseException:
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def serving(interpreter: str, path: str) -> Iterator[None]:
    """A server of `interpreter` at `path`, until the block ends."""
    import subprocess

    root = str(Path(__file__).parents[2])
    code = (
        f"import sys; sys.path.append({root!r}); from tests.strangers import warm;"
        f" warm.serve({path!r})"
    )
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("ECRL_")
    }
    server = subprocess.Popen(
        [interpreter, "-W", "ignore", "-c", code], stdout=subprocess.PIPE, env=environment
    )
    try:
        assert server.stdout is not None and server.stdout.readline() == b"ready\n"
        yield
    finally:
        server.kill()
        server.wait()
        if server.stdout is not None:
            server.stdout.close()


if __name__ == "__main__":
    sys.exit(attempt(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
