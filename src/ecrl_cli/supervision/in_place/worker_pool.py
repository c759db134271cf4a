"""The processes available for the next attempt of an in-place recovery: survivors of the attempt before, and warm spares."""

from __future__ import annotations

from collections.abc import Callable

from ecrl_cli.linux import processes
from ecrl_cli.records.attempt_spec import AttemptSpec
from ecrl_cli.records.messages import Assignment, LeftAttempt
from ecrl_cli.supervision.attempts.stop_signals import StopSignals
from ecrl_cli.supervision.in_place.checkpoint_prevalidation import CheckpointPrevalidator
from ecrl_cli.supervision.in_place.spare_pool import IdleWorker, SparePool, end
from ecrl_cli.supervision.launch.zygote import ZygoteAttempt
from ecrl_cli.supervision.watch.control_server import Connection, ControlServer


class WorkerPool:
    """`spares`: how many are kept warm. `tell`: prints one line for the user. `prevalidator`: started when a rank dies; None if no checkpoint is
    loaded then.
    """

    def __init__(self, listener: ControlServer, spares: int, tell: Callable[[str], None], prevalidator: CheckpointPrevalidator | None) -> None:
        self.listener, self.spares, self.prevalidator = listener, SparePool(spares, tell), prevalidator
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
        self.survivors = {rank: worker for rank, worker in self.survivors.items() if worker not in ended}
        end(ended)
        return {rank: worker.left.global_step for rank, worker in self.survivors.items() if worker.left}

    def gather(self, count: int, stop: StopSignals, seconds: float) -> int:
        """Wait for `count` ready spares, at most `seconds`; returns how many are ready."""
        self.spares.gather(count, self.listener, stop, seconds)
        return self.spares.ready

    def choose(self, origins: tuple[int, ...], joined: tuple[int, ...]) -> tuple[int, ...]:
        """Choose the process of each new rank: a survivor by its old rank in `origins`, or a spare for the ranks in `joined`. Returns the pids by
        new rank.

        A process that dies after this counts as a rank that died in the next attempt.
        """
        spares = iter(self.spares.take(len(joined)))
        self._chosen = tuple(next(spares) if rank in joined else self.survivors.pop(origin) for rank, origin in enumerate(origins))
        return tuple(worker.pid for worker in self._chosen)

    def assign(self, spec: AttemptSpec, running: ZygoteAttempt) -> None:
        """Send each chosen process its Assignment. From then on the processes belong to `running`."""
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
