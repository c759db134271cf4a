"""Runs jobs as forks of one process that has imported torch: an audited job of seconds takes a fraction of one.

`ForkServer.command(script, *words)` is a command line for `run_arm`: a small client that asks the server for one child, or for several ranks as
torchrun starts them (the first failure ends all), and ends as they end. The recorder is installed in the child, as its sitecustomize does it.

    python -m tests.e2e.forked_jobs SOCKET      the server
    python -S -E forked_jobs.py SOCKET RANKS SCRIPT WORDS...     a client
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

_MOST = 1 << 20


class ForkServer:
    """A context: the server runs inside it."""

    def __enter__(self) -> ForkServer:
        self._folder = tempfile.TemporaryDirectory()
        self._socket = str(Path(self._folder.name) / "socket")
        root = Path(__file__).parents[2]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ECRL_")}
        environment |= {"PYTHONPATH": f"{root}{os.pathsep}{root / 'src'}", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "tests.e2e.forked_jobs", self._socket]
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd=root)
        assert self._server.stdout is not None and self._server.stdout.readline() == b"ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self._server.stdin, self._server.stdout):
            assert pipe is not None
            pipe.close()  # the server ends with its standard input
        self._server.wait()
        self._folder.cleanup()

    def command(self, script: str, *words: str, ranks: int = 0) -> tuple[str, ...]:
        """`ranks` 0: one process without a group."""
        return (sys.executable, "-S", "-E", __file__, self._socket, str(ranks), script, *words)


def serve(path: str) -> None:
    import torch._dynamo  # what the first step of an optimizer imports
    import torch.distributed
    import torch.nn.parallel
    import torch.utils.data

    torch.set_num_threads(1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(16)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            ready, _, _ = select.select([listener, sys.stdin], [], [])
            if sys.stdin in ready:
                os._exit(0)
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _lead(connection)
            connection.close()
            _reap()


def _reap() -> None:
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                return
        except ChildProcessError:
            return


def _lead(connection: socket.socket) -> None:
    """Start the ranks of one request, wait for their end or for the client's, and answer with the status."""
    data, descriptors, _, _ = socket.recv_fds(connection, _MOST, 2)
    request = json.loads(data)
    environment, ranks = request["environment"], request["ranks"]
    children = []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(max(1, ranks)):
            more = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "ECRL_TEST_STORE": f"{folder}/store"} if ranks else {}
            pid = os.fork()
            if pid == 0:
                connection.close()
                _child(request["words"], environment | more, descriptors)
            children.append(pid)
        status = _wait(children, connection)
    connection.send(str(status).encode())
    os._exit(0)


def _wait(children: list[int], client: socket.socket) -> int:
    """The status of the first child that fails, 0 if all succeed; -9 if the client is gone. No child is left."""
    living = {os.pidfd_open(pid): pid for pid in children}
    verdict = 0
    while living:
        ready, _, _ = select.select([client, *living], [], [])
        if client in ready and not client.recv(1):
            verdict = -signal.SIGKILL
        for descriptor in [one for one in ready if one is not client]:
            _, status = os.waitpid(living.pop(descriptor), 0)
            os.close(descriptor)
            verdict = verdict or os.waitstatus_to_exitcode(status)
        if verdict:
            for pid in living.values():
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            break
    return verdict


def _child(words: list[str], environment: dict[str, str], descriptors: list[int]) -> None:
    import runpy
    import traceback

    from ecrl.hooks import install

    code = 1
    try:
        os.dup2(descriptors[0], 1)
        os.dup2(descriptors[1], 2)
        os.environ.clear()
        os.environ.update(environment)
        if environment.get("ECRL_TEST_STORE"):
            _file_store(environment["ECRL_TEST_STORE"])
        if environment.get("ECRL_RECORD"):
            install()
        sys.argv = list(words)
        runpy.run_path(words[0], run_name="__main__")
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _file_store(path: str) -> None:
    """`init_process_group()` meets in a file instead of at an address: no port is chosen."""
    import functools

    import torch.distributed as dist

    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group = functools.partial(dist.init_process_group, init_method=f"file://{path}", rank=rank, world_size=world_size)


def ask() -> None:
    path, ranks, *words = sys.argv[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(path)
        request = json.dumps({"ranks": int(ranks), "words": words, "environment": dict(os.environ)}).encode()
        socket.send_fds(server, [request], [1, 2])
        status = int(server.recv(64) or b"1")
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    serve(sys.argv[1]) if len(sys.argv) == 2 else ask()
