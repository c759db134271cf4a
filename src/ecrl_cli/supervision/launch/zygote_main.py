"""The zygote's own program: import what ranks need, then fork ranks on request. The only module of this floor that imports torch."""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import torch._dynamo  # noqa: F401 - the first optimizer step of a process imports it: 1.5 s
from torch._C._distributed_c10d import TCPStore

from ecrl_cli.linux.clock import monotonic
from ecrl_cli.linux.pdeathsig import ORPHANED, die_with_parent
from ecrl_cli.training.output import print_to
from ecrl_cli.training.rendezvous import Rendezvous, TcpStoreAddress

HOST = "127.0.0.1"
MESSAGE_BYTES = 65536


def main(argv: list[str]) -> None:
    line = socket.socket(fileno=int(argv[0]))
    load(argv[1:])
    supervisor = os.getppid()
    port = start_store()
    # What exists now stays shared with the ranks: the collector would otherwise write to every page.
    gc.collect()
    gc.freeze()
    while data := line.recv(MESSAGE_BYTES):
        request = json.loads(data)
        load(request["preload"])
        if "module" in request:
            fork_ranks(request, ZygoteHandles(line, supervisor, port))
        else:
            line.send(json.dumps({"warm": request["preload"]}).encode())


class ZygoteHandles:
    """What a rank needs of those it comes from, and must let go of."""

    def __init__(self, line: socket.socket, supervisor: int, port: int) -> None:
        self.line, self.supervisor, self.port = line, supervisor, port


def load(modules: list[str]) -> None:
    for name in modules:
        importlib.import_module(name)


def start_store() -> int:
    """Fork the process that hosts the store; gives its port. Apart from here because its server runs in a thread, and forks must not."""
    port_read, port_write = os.pipe()
    zygote = os.getpid()
    if os.fork() == 0:
        die_with_parent(zygote)
        listener = socket.create_server((HOST, 0))  # ours: the store itself would listen on every address of the machine
        port = listener.getsockname()[1]
        store = TCPStore(HOST, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
        os.write(port_write, str(store.port).encode())
        os.close(port_write)
        while True:
            signal.pause()
    os.close(port_write)
    port = int(os.read(port_read, 16))
    os.close(port_read)
    return port


def fork_ranks(request: dict[str, Any], parents: ZygoteHandles) -> None:
    """Fork all ranks, or `spares` of them, through a process that ends at once, tell the supervisor their ids, then let them go.

    A rank waits for the word because only after its parent has been reaped is the supervisor its parent for good: a parent-death
    signal asked for before would strike right then.
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


def fork_all(request: dict[str, Any], parents: ZygoteHandles, go_read: int, pids: tuple[int, int]) -> NoReturn:
    """In the process between: write the ranks' ids to the pipe `pids` and end. Where a fork fails nothing is written."""
    try:
        count = request["spares"] if "spares" in request else request["world_size"]
        ids = [fork_rank(rank, go_read, pids, request, parents) for rank in range(count)]
        os.write(pids[1], json.dumps(ids).encode())
        os._exit(0)
    except BaseException as error:
        leave(error)


def fork_rank(rank: int, go_read: int, pids: tuple[int, int], request: dict[str, Any], parents: ZygoteHandles) -> int:
    pid = os.fork()
    if pid:
        return pid
    started = monotonic()
    try:
        for end in pids:  # or the zygote would wait for a rank that waits for it
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
    """What this process was forked for; gives its exit code."""
    worker, run_dir = importlib.import_module(request["module"]), Path(request["run_dir"])
    store = TcpStoreAddress(HOST, port, request.get("prefix", ""))
    if "spares" in request:
        return int(worker.run_spare(run_dir, store, started))
    return int(worker.run_rank(run_dir, request["attempt"], Rendezvous(rank, request["world_size"], store), started))


def leave(error: BaseException) -> NoReturn:
    """End as a Python process would, but run none of the zygote's exit handlers and destructors."""
    code = 1
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    else:
        traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
