"""The processes available for the next attempt of an in-place recovery: survivors of the attempt
before, and warm spares.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from dataclasses import dataclass

from ecrl_cli.checkpoint.store.examination import CheckpointPrevalidator
from ecrl_cli.linux import processes
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.records.messages import Assignment, AttemptSpec, LeftAttempt, SpareReady
from ecrl_cli.supervision.attempts.stop_signals import StopSignals
from ecrl_cli.supervision.launch.launcher import GONE_WITHIN_S
from ecrl_cli.supervision.launch.zygote import ZygoteAttempt
from ecrl_cli.supervision.watch.control_server import Connection, ControlServer

ANSWER_S = 10.0  # forking takes milliseconds
STILLBORN = 3  # spares in a row that ended before they were ready; after that no more are started


@dataclass(eq=False)
class IdleWorker:
    """A process that waits on `connection` for an Assignment; None for a spare that is not ready
    yet. `left`: a survivor's message on leaving its attempt.
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
    """Keeps `wanted` warm spares: processes that have imported, loaded and built all that does not
    depend on the rank, and wait for one.

    `tell`: prints one line for the user.
    """

    def __init__(self, wanted: int, tell: Callable[[str], None]) -> None:
        self.wanted, self._tell = wanted, tell
        self._idle: list[IdleWorker] = []
        # connected, no message yet: spares that are warming up
        self._unready: list[Connection] = []
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
        """Fork spares from the zygote of `running` from now on. Spares of another zygote are
        dropped: they died with it.
        """
        if self._source and self._source.zygote is not running.zygote:
            self._asked = 0
            end(self._idle)
            self._idle = []
        self._source = running

    def watched(self) -> list[int]:
        """Descriptors that become readable when `poll` has something to do."""
        zygote = (
            [self._source.zygote.socket.fileno()]
            if self._source and self._asked and not self._source.zygote.over()
            else []
        )
        return (
            zygote
            + [spare.pidfd for spare in self._idle]
            + [connection.socket.fileno() for connection in self._unready]
        )

    def poll(self) -> None:
        """Process new pids, messages and deaths of spares. Closes descriptors, so `watched`
        changes.
        """
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
        if (
            missing > 0
            and self._failed_starts < STILLBORN
            and self._source
            and not self._source.zygote.over()
        ):
            spec = self._source.spec
            self._asked += missing
            request = {
                "module": spec.module,
                "spares": missing,
                "run_dir": str(spec.layout.root),
                "preload": spec.preload,
                "output": spec.output,
            }
            self._source.zygote.ask(request)

    def keep(self, connection: Connection) -> None:
        """Take over a connection on which no message has arrived yet."""
        self._unready.append(connection)

    def add_ready(self, standby: SpareReady, connection: Connection) -> None:
        """A spare is ready. Its message may arrive before the zygote has reported its pid."""
        if all(spare.pid != standby.pid for spare in self._idle):
            self.collect_pids()
        spare = next(
            (each for each in self._idle if each.pid == standby.pid and each.connection is None),
            None,
        )
        if spare is None:
            connection.socket.close()
        else:
            spare.connection, self._failed_starts = connection, 0

    def gather(
        self, count: int, listener: ControlServer, stop: StopSignals, seconds: float
    ) -> None:
        """Wait until `count` spares are ready, or none can become so; at most `seconds`, and only
        until a stop signal.
        """
        deadline = monotonic() + seconds
        while self.ready < count and not stop.received() and (left := deadline - monotonic()) > 0:
            self.refill()
            if (
                self._source is None
                or self._source.zygote.over()
                or (not self._asked and self.ready == len(self._idle))
            ):
                return
            select.select(
                [listener.fileno(), stop.fileno(), self._source.zygote.pidfd, *self.watched()],
                [],
                [],
                left,
            )
            while connection := listener.accept():
                self.keep(connection)
            self.poll()

    def collect_pids(self) -> None:
        """Wait until the zygote has reported all requested spares (milliseconds) or has ended, and
        its spares with it.

        A zygote that does not answer within ANSWER_S is killed.
        """
        while self._asked and self._source:
            if self._source.zygote.over():
                self._asked = 0
                return
            self._read_pids()
            if self._asked and not any(
                select.select(
                    [self._source.zygote.socket.fileno(), self._source.zygote.pidfd],
                    [],
                    [],
                    ANSWER_S,
                )
            ):
                self._tell(
                    f"the zygote has not answered for {ANSWER_S:g} s and is killed, with all that"
                    " it forked"
                )
                self._source.zygote.kill()
                processes.wait_all([self._source.zygote.pidfd], GONE_WITHIN_S)

    def take(self, count: int) -> list[IdleWorker]:
        """Remove up to `count` ready spares from the pool and return them."""
        taken = [spare for spare in self._idle if spare.connection is not None][:count]
        self._idle = [spare for spare in self._idle if spare not in taken]
        return taken

    def close(self) -> None:
        """End all spares."""
        self.collect_pids()
        end(self._idle)
        for connection in self._unready:
            connection.socket.close()
        self._idle, self._unready = [], []

    def _read_pids(self) -> None:
        for message in self._source.zygote.messages("spares") if self._source else ():
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
            self._tell(
                "spares end before they stand by: no more of them are started, output.log says why"
            )


class WorkerPool:
    """`spares`: how many are kept warm. `tell`: prints one line for the user. `prevalidator`:
    started when a rank dies; None if no checkpoint is loaded then.
    """

    def __init__(
        self,
        listener: ControlServer,
        spares: int,
        tell: Callable[[str], None],
        prevalidator: CheckpointPrevalidator | None,
    ) -> None:
        self.listener, self.spares, self.prevalidator = (
            listener,
            SparePool(spares, tell),
            prevalidator,
        )
        self.survivors: dict[int, IdleWorker] = {}
        self._chosen: tuple[IdleWorker, ...] = ()

    @property
    def pids(self) -> tuple[int, ...]:
        workers = (*self.survivors.values(), *self._chosen)
        return (*(worker.pid for worker in workers), *self.spares.pids)

    def leave(self, left: LeftAttempt, connection: Connection) -> None:
        """A rank has left its attempt and waits on `connection`."""
        pidfd = processes.open_pidfd(left.pid)
        if pidfd is None or left.rank in self.survivors:
            connection.socket.close()
        else:
            self.survivors[left.rank] = IdleWorker(left.pid, pidfd, connection, left)

    def mark_dead(self, rank: int) -> None:
        """A rank of the running attempt has died, possibly after leaving it."""
        if rank in self.survivors:
            self.survivors.pop(rank).release()

    def steps(self) -> dict[int, int]:
        """By living survivor, the last step that it completed. Reaps survivors that have died."""
        ended = [worker for worker in self.survivors.values() if worker.ended]
        self.survivors = {
            rank: worker for rank, worker in self.survivors.items() if worker not in ended
        }
        end(ended)
        return {
            rank: worker.left.global_step for rank, worker in self.survivors.items() if worker.left
        }

    def gather(self, count: int, stop: StopSignals, seconds: float) -> int:
        """Wait for `count` ready spares, at most `seconds`; returns how many are ready."""
        self.spares.gather(count, self.listener, stop, seconds)
        return self.spares.ready

    def choose(self, origins: tuple[int, ...], joined: tuple[int, ...]) -> tuple[int, ...]:
        """Choose the process of each new rank: a survivor by its old rank in `origins`, or a spare
        for the ranks in `joined`. Returns the pids by new rank.

        A process that dies after this counts as a rank that died in the next attempt.
        """
        spares = iter(self.spares.take(len(joined)))
        self._chosen = tuple(
            next(spares) if rank in joined else self.survivors.pop(origin)
            for rank, origin in enumerate(origins)
        )
        return tuple(worker.pid for worker in self._chosen)

    def assign(self, spec: AttemptSpec, running: ZygoteAttempt) -> None:
        """Send each chosen process its Assignment. From then on the processes belong to
        `running`.
        """
        for rank, worker in enumerate(self._chosen):
            if worker.connection:
                worker.connection.assign(Assignment(spec.attempt, rank, running.prefix))
            worker.release()
        self._chosen = ()

    def dismiss(self) -> None:
        """Kill the survivors and the chosen processes; spares stay."""
        end([*self.survivors.values(), *self._chosen])
        self.survivors, self._chosen = {}, ()

    def close(self) -> None:
        """Kill survivors and spares."""
        self.dismiss()
        self.spares.close()
