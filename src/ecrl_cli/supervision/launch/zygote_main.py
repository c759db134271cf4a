"""The zygote's program: import what ranks need, then fork ranks on request. With `torchrun_main`
the only module here that imports torch.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

from torch._C._distributed_c10d import TCPStore

from ecrl_cli.linux.clock import monotonic
from ecrl_cli.linux.pdeathsig import ORPHANED, die_with_parent
from ecrl_cli.linux.processes import print_to
from ecrl_cli.supervision.launch.forked_ranks import leave, load, share_memory
from ecrl_cli.training.rendezvous import Rendezvous, TcpStoreAddress

HOST = "127.0.0.1"
MESSAGE_BYTES = 65536


def main(argv: list[str]) -> None:
    line = socket.socket(fileno=int(argv[0]))
    load(argv[1:])
    supervisor = os.getppid()
    store, port = start_store()
    share_memory()
    while data := line.recv(MESSAGE_BYTES):
        request = json.loads(data)
        load(request["preload"])
        if "module" in request:
            fork_ranks(request, ZygoteHandles(line, supervisor, port))
        else:
            line.send(json.dumps({"warm": request["preload"], "store": store}).encode())


class ZygoteHandles:
    """Handles that a forked rank gets from the zygote: its socket, which the rank closes, the
    supervisor's pid and the store's port.
    """

    def __init__(self, line: socket.socket, supervisor: int, port: int) -> None:
        self.line, self.supervisor, self.port = line, supervisor, port


def start_store() -> tuple[int, int]:
    """Fork the process that hosts the store; returns its pid and its port. Its own process because
    the store's server is a thread, and forking with threads is unsafe.
    """
    port_read, port_write = os.pipe()
    zygote = os.getpid()
    if (pid := os.fork()) == 0:
        die_with_parent(zygote)
        # our own socket: a TCPStore's would listen on every address of the machine
        listener = socket.create_server((HOST, 0))
        port = listener.getsockname()[1]
        store = TCPStore(
            HOST, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )
        os.write(port_write, str(store.port).encode())
        os.close(port_write)
        while True:
            signal.pause()
    os.close(port_write)
    port = int(os.read(port_read, 16))
    os.close(port_read)
    return pid, port


def fork_ranks(request: dict[str, Any], parents: ZygoteHandles) -> None:
    """Fork all ranks, or `spares` of them, through an intermediate process, report their pids to
    the supervisor, then let them start.

    A rank waits for this because its parent becomes the supervisor only when the intermediate
    process has been reaped. A parent-death signal requested before would be sent right then.
    """
    go_read, go_write = os.pipe()
    pids_read, pids_write = os.pipe()
    between = os.fork()
    if between == 0:
        os.close(go_write)
        fork_all(request, parents, go_read, (pids_read, pids_write))
    os.close(go_read)
    os.close(pids_write)
    os.waitpid(between, 0)
    pids = json.loads(os.read(pids_read, MESSAGE_BYTES))
    os.close(pids_read)
    told = {"spares": True} if "spares" in request else {"prefix": request["prefix"]}
    parents.line.send(json.dumps({**told, "pids": pids}).encode())
    os.write(go_write, b"g" * len(pids))
    os.close(go_write)


def fork_all(
    request: dict[str, Any], parents: ZygoteHandles, go_read: int, pids: tuple[int, int]
) -> NoReturn:
    """In the intermediate process: write the ranks' pids to the pipe `pids` and exit. Writes
    nothing if a fork fails.
    """
    try:
        count = request["spares"] if "spares" in request else request["world_size"]
        ids = [fork_rank(rank, go_read, pids, request, parents) for rank in range(count)]
        os.write(pids[1], json.dumps(ids).encode())
        os._exit(0)
    except BaseException as error:
        leave(error)


def fork_rank(
    rank: int, go_read: int, pids: tuple[int, int], request: dict[str, Any], parents: ZygoteHandles
) -> int:
    pid = os.fork()
    if pid:
        return pid
    started = monotonic()
    try:
        # else, if a fork fails, the zygote would wait for end of file and this rank for the zygote
        for end in pids:
            os.close(end)
        if os.read(go_read, 1) != b"g":
            os._exit(ORPHANED)
        die_with_parent(parents.supervisor)
        os.close(go_read)
        parents.line.close()
        print_to(Path(request["output"]))
        sys.exit(work(rank, request, parents.port, started))
    except BaseException as error:
        leave(error)


def work(rank: int, request: dict[str, Any], port: int, started: float) -> int:
    """Run what this process was forked for; returns its exit code."""
    worker, run_dir = importlib.import_module(request["module"]), Path(request["run_dir"])
    store = TcpStoreAddress(HOST, port, request.get("prefix", ""))
    if "spares" in request:
        return int(worker.run_spare(run_dir, store, started))
    return int(
        worker.run_rank(
            run_dir, request["attempt"], Rendezvous(rank, request["world_size"], store), started
        )
    )


if __name__ == "__main__":
    main(sys.argv[1:])
