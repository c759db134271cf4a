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
        self.listener, self.spares, self.ahead = listener, SparePool(spares, tell), prevalidator
        self.survivors: dict[int, IdleWorker] = {}
        self._called: tuple[IdleWorker, ...] = ()

    @property
    def pids(self) -> tuple[int, ...]:
        hands = (*self.survivors.values(), *self._called)
        return (*(hand.pid for hand in hands), *self.spares.pids)

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
        ended = [hand for hand in self.survivors.values() if hand.ended]
        self.survivors = {rank: hand for rank, hand in self.survivors.items() if hand not in ended}
        end(ended)
        return {rank: hand.left.global_step for rank, hand in self.survivors.items() if hand.left}

    def gather(self, count: int, stop: StopSignals, seconds: float) -> int:
        """Wait for `count` ready spares, at most `seconds`; returns how many are ready."""
        self.spares.gather(count, self.listener, stop, seconds)
        return self.spares.ready

    def call(self, origins: tuple[int, ...], joined: tuple[int, ...]) -> tuple[int, ...]:
        """Choose the process of each new rank: a survivor by its old rank in `origins`, or a spare for the ranks in `joined`. Returns the pids by
        new rank.

        A process that dies after this counts as a rank that died in the next attempt.
        """
        spares = iter(self.spares.take(len(joined)))
        self._called = tuple(next(spares) if rank in joined else self.survivors.pop(origin) for rank, origin in enumerate(origins))
        return tuple(hand.pid for hand in self._called)

    def assign(self, order: AttemptSpec, running: ZygoteAttempt) -> None:
        """Send each chosen process its Assignment. From then on the processes belong to `running`."""
        for rank, hand in enumerate(self._called):
            if hand.connection:
                hand.connection.assign(Assignment(order.attempt, rank, running.prefix))
            hand.release()
        self._called = ()

    def dismiss(self) -> None:
        """Kill the survivors and the chosen processes; spares stay."""
        end([*self.survivors.values(), *self._called])
        self.survivors, self._called = {}, ()

    def close(self) -> None:
        """Kill survivors and spares."""
        self.dismiss()
        self.spares.close()
