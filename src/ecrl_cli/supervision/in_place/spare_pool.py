"""Warm spares: processes that have imported, loaded and built all that does not depend on the rank, and wait to be assigned one."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from dataclasses import dataclass

from ecrl_cli.linux import processes
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.records.messages import LeftAttempt, SpareReady
from ecrl_cli.supervision.attempts.stop_signals import StopSignals
from ecrl_cli.supervision.launch.launcher import GONE_WITHIN_S
from ecrl_cli.supervision.launch.zygote import ZygoteAttempt
from ecrl_cli.supervision.watch.control_server import Connection, ControlServer

ANSWER_S = 10.0  # forking takes milliseconds
STILLBORN = 3  # spares in a row that ended before they were ready; after that no more are started


@dataclass(eq=False)
class IdleWorker:
    """A process that waits on `connection` for an Assignment; None for a spare that is not ready yet. `left`: a survivor's message on leaving its
    attempt.
    """

    pid: int
    pidfd: int
    connection: Connection | None = None
    left: LeftAttempt | None = None

    @property
    def ended(self) -> bool:
        return processes.ended(self.pidfd)

    def release(self) -> None:
        """Close this object's descriptors. The process lives on, under another owner."""
        os.close(self.pidfd)
        if self.connection:
            self.connection.socket.close()


def end(workers: list[IdleWorker]) -> None:
    """Kill, wait for and reap these processes."""
    for worker in workers:
        processes.kill(worker.pidfd)
    processes.wait_all([worker.pidfd for worker in workers], GONE_WITHIN_S)
    for worker in workers:
        processes.reap(worker.pid)
        worker.release()


class SparePool:
    """Keeps `wanted` warm spares. `tell`: prints one line for the user."""

    def __init__(self, wanted: int, tell: Callable[[str], None]) -> None:
        self.wanted, self._tell = wanted, tell
        self._idle: list[IdleWorker] = []
        self._unready: list[Connection] = []  # connected, no message yet: spares that are warming up
        self._source: ZygoteAttempt | None = None
        self._asked = self._failed_starts = 0

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(spare.pid for spare in self._idle)

    @property
    def ready(self) -> int:
        """How many spares are ready."""
        return sum(spare.connection is not None for spare in self._idle)

    def serve(self, running: ZygoteAttempt) -> None:
        """Fork spares from the zygote of `running` from now on. Spares of another zygote are dropped: they died with it."""
        if self._source and self._source.zygote is not running.zygote:
            self._asked = 0
            end(self._idle)
            self._idle = []
        self._source = running

    def watched(self) -> list[int]:
        """Descriptors that become readable when `poll` has something to do."""
        zygote = [self._source.zygote.socket.fileno()] if self._source and self._asked and not self._source.zygote.over() else []
        return zygote + [spare.pidfd for spare in self._idle] + [connection.socket.fileno() for connection in self._unready]

    def poll(self) -> None:
        """Process new pids, messages and deaths of spares. Closes descriptors, so `watched` changes."""
        self._read_pids()
        for connection in list(self._unready):
            self._receive(connection)
        dead = [spare for spare in self._idle if spare.ended]
        self._idle = [spare for spare in self._idle if spare not in dead]
        self._count_failed_starts([spare for spare in dead if spare.connection is None])
        end(dead)

    def refill(self) -> None:
        """Ask the zygote to fork the missing spares."""
        missing = self.wanted - len(self._idle) - self._asked
        if missing > 0 and self._failed_starts < STILLBORN and self._source and not self._source.zygote.over():
            spec = self._source.spec
            self._asked += missing
            request = {"module": spec.module, "spares": missing, "run_dir": str(spec.layout.root), "preload": spec.preload, "output": spec.output}
            self._source.zygote.ask(request)

    def keep(self, connection: Connection) -> None:
        """Take over a connection on which no message has arrived yet."""
        self._unready.append(connection)

    def add_ready(self, standby: SpareReady, connection: Connection) -> None:
        """A spare is ready. Its message may arrive before the zygote has reported its pid."""
        if all(spare.pid != standby.pid for spare in self._idle):
            self.settle()
        spare = next((each for each in self._idle if each.pid == standby.pid and each.connection is None), None)
        if spare is None:
            connection.socket.close()
        else:
            spare.connection, self._failed_starts = connection, 0

    def gather(self, count: int, listener: ControlServer, stop: StopSignals, seconds: float) -> None:
        """Wait until `count` spares are ready, or none can become so; at most `seconds`, and only until a stop signal."""
        deadline = monotonic() + seconds
        while self.ready < count and not stop.received() and (left := deadline - monotonic()) > 0:
            self.refill()
            if self._source is None or self._source.zygote.over() or (not self._asked and self.ready == len(self._idle)):
                return
            select.select([listener.fileno(), stop.fileno(), self._source.zygote.pidfd, *self.watched()], [], [], left)
            while connection := listener.accept():
                self.keep(connection)
            self.poll()

    def settle(self) -> None:
        """Wait until the zygote has reported all requested spares (milliseconds) or has ended, and its spares with it.

        A zygote that does not answer within ANSWER_S is killed.
        """
        while self._asked and self._source:
            if self._source.zygote.over():
                self._asked = 0
                return
            self._read_pids()
            if self._asked and not any(select.select([self._source.zygote.socket.fileno(), self._source.zygote.pidfd], [], [], ANSWER_S)):
                self._tell(f"the zygote has not answered for {ANSWER_S:g} s and is killed, with all that it forked")
                self._source.zygote.kill()
                processes.wait_all([self._source.zygote.pidfd], GONE_WITHIN_S)

    def take(self, count: int) -> list[IdleWorker]:
        """Remove up to `count` ready spares from the pool and return them."""
        taken = [spare for spare in self._idle if spare.connection is not None][:count]
        self._idle = [spare for spare in self._idle if spare not in taken]
        return taken

    def close(self) -> None:
        """End all spares."""
        self.settle()
        end(self._idle)
        for connection in self._unready:
            connection.socket.close()
        self._idle, self._unready = [], []

    def _read_pids(self) -> None:
        for message in self._source.zygote.heard("spares") if self._source else ():
            self._asked -= len(message["pids"])
            opened = [(pid, processes.open_pidfd(pid)) for pid in message["pids"]]
            self._idle += [IdleWorker(pid, pidfd) for pid, pidfd in opened if pidfd is not None]

    def _receive(self, connection: Connection) -> None:
        messages, hung_up = connection.receive()
        standby = next((message for message in messages if isinstance(message, SpareReady)), None)
        if standby or hung_up:
            self._unready.remove(connection)
        if standby:
            self.add_ready(standby, connection)
        elif hung_up:
            connection.socket.close()

    def _count_failed_starts(self, dead: list[IdleWorker]) -> None:
        self._failed_starts += len(dead)
        if dead and self._failed_starts - len(dead) < STILLBORN <= self._failed_starts:
            self._tell("spares end before they stand by: no more of them are started, output.log says why")
