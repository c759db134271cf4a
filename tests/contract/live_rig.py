"""Real ranks, as the zygote forks them, under a supervisor that only does what live recovery asks
of one.

`python -m tests.contract.live_rig ROOT CASES`. CASES: JSON, {name: {config keys by dotted name,
"plan": [PlannedFailure keys]}}. Each case runs in the folder ROOT/name as a run directory. Torch is
imported once; every rank is forked from here.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import os
import select
import signal
import sys
from pathlib import Path
from typing import Any

from ecrl_cli.config.codec import decode, encode
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.failures.plan import pending
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.linux.pdeathsig import die_with_parent
from ecrl_cli.linux.processes import print_to
from ecrl_cli.records.events import PlannedFailure
from ecrl_cli.records.heartbeat_table import HeartbeatTable
from ecrl_cli.records.journal import line_of
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import (
    Assignment,
    AttemptSpec,
    Hello,
    LeftAttempt,
    RankError,
    SpareReady,
)
from ecrl_cli.records.run_config import write_run_config
from ecrl_cli.storage.files import write_json
from ecrl_cli.supervision.launch.forked_ranks import load, share_memory
from ecrl_cli.supervision.launch.zygote_main import HOST, start_store
from ecrl_cli.supervision.watch import control_server as listening
from ecrl_cli.supervision.watch.control_server import Connection, ControlServer
from ecrl_cli.training import in_place_session, worker  # noqa: F401
from ecrl_cli.training.rendezvous import Rendezvous, TcpStoreAddress

SILENT_S = 60.0  # no case takes as long between two things that happen


def main(root: Path, cases: dict[str, Any]) -> None:
    listening.KINDS.update(left=LeftAttempt, standby=SpareReady)
    # DDP's constructor imports it, each forked rank anew where its parent has not
    load(("torch._dynamo",))
    share_memory()
    _, port = start_store()
    for number, (name, case) in enumerate(cases.items()):
        LiveCase(RunLayout(root / name), case, port, number).run()


class LiveCase:
    def __init__(self, layout: RunLayout, case: dict[str, Any], port: int, number: int) -> None:
        self.layout, self.port, self.number = layout, port, number
        self.plan = tuple(
            decode(PlannedFailure, {"index": i, "kind": "kill", **entry})
            for i, entry in enumerate(case.pop("plan", []))
        )
        self.config = configured(case)
        layout.fired.mkdir(parents=True)
        write_run_config(layout, self.config)
        self.listener, self.board = (
            ControlServer(layout),
            HeartbeatTable.create(self.config.world_size),
        )
        self.pids: dict[int, int] = {}  # by rank of the running attempt
        self.alive: dict[int, int] = {}  # by descriptor, the process
        self.left: dict[int, tuple[LeftAttempt, Connection]] = {}
        self.spares: list[Connection] = []
        self.connections: dict[int, Connection] = {}
        self.attempt = 0

    def run(self) -> None:
        ranks = range(self.config.world_size)
        self.open(AttemptSpec(0, len(ranks), 0, None, 0, self.plan))
        self.pids = {rank: self.fork(lambda place=rank: self.rank(place)) for rank in ranks}
        for _ in range(self.config.supervision.spares):
            self.fork(self.spare)
        while set(self.alive.values()) & set(self.pids.values()):
            ready, _, _ = select.select(
                [*self.alive, self.listener, *self.connections], [], [], SILENT_S
            )
            assert ready, (
                f"{self.layout.root.name}: processes {sorted(self.alive.values())} hang in attempt"
                f" {self.attempt}"
            )
            self.turn(ready)
            living = {rank for rank, pid in self.pids.items() if pid in self.alive.values()}
            if living and living <= {left.rank for left, _ in self.left.values()}:
                self.follow(sorted(living))
        for connection in [*self.spares, *self.connections.values()]:
            connection.socket.close()
        for fd, pid in self.alive.items():
            os.waitpid(pid, 0)
            os.close(fd)
        self.listener.close()
        self.board.close()

    def turn(self, ready: list[Any]) -> None:
        while connection := self.listener.accept():
            self.connections[connection.socket.fileno()] = connection
        for fd in [fd for fd in ready if fd in self.connections]:
            connection = self.connections[fd]
            messages, gone = connection.receive()
            for message in messages:
                self.take(message, connection)
            if gone:
                self.connections.pop(fd, None)
                connection.socket.close()
        for fd in [fd for fd in ready if fd in self.alive]:
            pid = self.alive.pop(fd)
            os.close(fd)
            _, status = os.waitpid(pid, 0)
            for rank in [rank for rank, each in self.pids.items() if each == pid and status]:
                self.board.mark_dead(rank)
                self.left.pop(pid, None)

    def take(self, message: Any, connection: Connection) -> None:
        if isinstance(message, Hello):
            connection.answer((self.board.fd,))
        elif isinstance(message, LeftAttempt):
            self.left[message.pid] = message, connection
        elif isinstance(message, SpareReady):
            self.spares.append(self.connections.pop(connection.socket.fileno()))
            self.spare_pids = {
                **getattr(self, "spare_pids", {}),
                connection.socket.fileno(): message.pid,
            }
        elif isinstance(message, RankError):
            sys.stderr.write(f"{self.layout.root.name}: {message.text}\n")

    def follow(self, living: list[int]) -> None:
        """The next attempt: spares in dead places while there are some, else fewer ranks."""
        steps = {left.global_step for left, _ in self.left.values()}
        assert len(steps) == 1, f"left after steps {steps}"
        before, dead = len(self.pids), [rank for rank in self.pids if rank not in living]
        # origin, process, connection, joined
        placement: list[tuple[int, int, Connection, bool]] = []
        for rank in range(before):
            if rank in living:
                pid = self.pids[rank]
                placement.append((rank, pid, self.left[pid][1], False))
            elif len(self.spares) >= len(dead):
                dead.remove(rank)
                spare = self.spares.pop(0)
                placement.append((rank, self.spare_pids[spare.socket.fileno()], spare, True))
        self.attempt += 1
        step, joined = steps.pop(), tuple(new for new, place in enumerate(placement) if place[3])
        fired = {int(path.stem) for path in self.layout.fired.iterdir()}
        order = AttemptSpec(
            self.attempt, len(placement), step, None, step, pending(self.plan, fired)
        )
        order = dataclasses.replace(
            order,
            continues=self.attempt - 1,
            memory="survivors",
            origins=tuple(place[0] for place in placement),
            joined=joined,
        )
        self.left = {}
        self.open(order)
        self.pids = {new: place[1] for new, place in enumerate(placement)}
        for new, (_, _, connection, _) in enumerate(placement):
            connection.socket.setblocking(True)
            connection.socket.sendall(line_of(Assignment(self.attempt, new, self.prefix)))

    @property
    def prefix(self) -> str:
        return f"case{self.number}.{self.attempt}"

    def open(self, order: AttemptSpec) -> None:
        logs = self.layout.attempt(order.attempt)
        logs.folder.mkdir(parents=True)
        write_json(logs.launch, encode(order))
        self.board.clear()
        self.board.set_members(order.world_size)

    def fork(self, life: Any) -> int:
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            code = 1
            try:
                die_with_parent(parent)
                faulthandler.dump_traceback_later(SILENT_S - 10, exit=True)
                print_to(self.layout.attempt(0).output)
                code = life()
            except BaseException as error:
                import traceback

                traceback.print_exception(error)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        self.alive[os.pidfd_open(pid)] = pid
        return pid

    def rank(self, rank: int) -> int:
        place = Rendezvous(
            rank, self.config.world_size, TcpStoreAddress(HOST, self.port, self.prefix)
        )
        return worker.run_rank(self.layout.root, 0, place, monotonic())

    def spare(self) -> int:
        return worker.run_spare(self.layout.root, TcpStoreAddress(HOST, self.port, ""), monotonic())


def configured(keys: dict[str, Any]) -> RunConfig:
    tree: dict[str, Any] = encode(RunConfig())
    tree["config"] = None
    del tree["config"]
    for key, value in keys.items():
        at = tree
        *groups, last = key.split(".")
        for group in groups:
            at = at[group]
        at[last] = value
    return decode(RunConfig, tree)


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
