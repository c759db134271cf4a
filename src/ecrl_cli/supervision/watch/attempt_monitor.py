"""Monitors one attempt from launch to the end of its last process, in an event loop that waits on
descriptors only.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from ecrl_cli.errors import StorageError, visible
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.records.events import Hang, Straggler
from ecrl_cli.records.messages import Hello, Notice, Progress, RankError
from ecrl_cli.supervision.attempts.restart_policy import INCURABLE
from ecrl_cli.supervision.attempts.stop_signals import StopSignals
from ecrl_cli.supervision.launch.launcher import RankExit, RankExits, RunningAttempt
from ecrl_cli.supervision.watch.control_server import Connection, ControlServer, Message
from ecrl_cli.supervision.watch.graceful_stop import GracefulStop
from ecrl_cli.supervision.watch.watchdog import AttemptWatchdog, Sidecar, WatchdogContext


class HasFileno(Protocol):
    def fileno(self) -> int: ...


class EventLoop:
    """Runs a callback when its descriptor becomes readable. The supervisor waits nowhere else."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._groups: dict[str, set[int]] = {}

    def add(self, source: HasFileno | int, callback: Callable[[], object]) -> None:
        self._selector.register(source, selectors.EVENT_READ, callback)

    def drop(self, source: HasFileno | int) -> None:
        self._selector.unregister(source)

    def set_group(self, name: str, fds: Collection[int], callback: Callable[[], object]) -> None:
        """Watch exactly `fds` under `name`, instead of those before."""
        now, before = set(fds), self._groups.get(name, set())
        for fd in before - now:
            self._selector.unregister(fd)
        for fd in now - before:
            self._selector.register(fd, selectors.EVENT_READ, callback)
        self._groups[name] = now

    def run_once(self, seconds: float | None = None) -> None:
        """Wait until something is readable, at most `seconds`, and call all its callbacks."""
        for key, _ in self._selector.select(seconds):
            key.data()

    def close(self) -> None:
        self._selector.close()


@dataclass(frozen=True)
class AttemptResult:
    """How an attempt ended. Each of these may be missing.

    `rank_error`: the error, reported by a rank, that explains the end. `stopped_by`: the stop
    signal. `hang`: the hang for which it was killed.
    """

    exits: RankExits
    rank_error: RankError | None
    stopped_by: int | None
    hang: Hang | None = None
    stragglers: tuple[Straggler, ...] = ()

    @property
    def succeeded(self) -> bool:
        """Every rank ended by itself with exit code 0."""
        ended_by_supervisor = self.stopped_by is not None or self.hang is not None
        return (
            self.exits.first is None
            and not ended_by_supervisor
            and all(rank.good for rank in self.exits.ranks)
        )


class AttemptMonitor:
    """Watches a running attempt for deaths, messages and stop signals; with a `context`, also for
    hangs.
    """

    def __init__(
        self,
        running: RunningAttempt,
        attempt: int,
        listener: ControlServer,
        stop: StopSignals,
        sidecar: Sidecar | None = None,
        context: WatchdogContext | None = None,
    ) -> None:
        self._running, self._attempt, self._listener, self._stop = running, attempt, listener, stop
        self._sidecar, self._context = sidecar, context
        self._watchdog = AttemptWatchdog(context, sidecar, monotonic()) if context else None
        self._graceful_stop = (
            context.graceful_stop(stop) if context else GracefulStop(stop, None, 0.0)
        )
        self._hang: Hang | None = None
        self._connections: dict[int, Connection] = {}
        self._rank_errors: list[RankError] = []
        self._on_progress: Callable[[Progress], None] = _ignore_progress
        self._reaped = False
        self._laid_down = context is not None and context.logs.launch.exists()
        self._events = EventLoop()

    def run(self, on_progress: Callable[[Progress], None]) -> AttemptResult:
        """Run until the attempt is over or is to stop; all its processes have ended when this
        returns.
        """
        self._on_progress = on_progress
        self._events.add(self._listener, self._accept)
        self._events.add(self._stop, wake)
        try:
            while not self._over():
                self._events.set_group("attempt", self._running.watched(), wake)
                self._check_sidecar()
                self._events.run_once(self._pause_s())
            return self._end()
        finally:
            self._close()

    def _over(self) -> bool:
        now = monotonic()
        self._check_run_directory()
        if self._finished() or self._graceful_stop.over(now):
            return True
        if self._context and self._context.wall_clock_faults:
            self._context.wall_clock_faults.inject_due(now, self._running.pids())
        self._hang = self._watchdog.check(now) if self._watchdog else None
        return self._hang is not None

    def _check_run_directory(self) -> None:
        """StorageError once the order of this attempt is gone: nothing that the ranks still write
        would be found.
        """
        if self._context and self._laid_down and not self._context.logs.launch.exists():
            folder, remedy = (
                self._context.logs.folder.parents[1],
                "put it back and start the same command, or start a new run",
            )
            raise StorageError(
                str(folder),
                "is gone: the run directory was removed or moved while the run was training",
                remedy,
            )

    def _finished(self) -> bool:
        """Whether the attempt is over because of what its ranks did; in-place recovery, where ranks
        may outlive others, says it otherwise.
        """
        return self._running.check()

    def _pause_s(self) -> float | None:
        """The longest time in seconds to wait for events; None: without limit."""
        now, faults = monotonic(), self._context.wall_clock_faults if self._context else None
        waits = [
            self._watchdog.every_s if self._watchdog else None,
            self._graceful_stop.left_s(now),
            faults.left_s(now) if faults else None,
        ]
        return min((wait for wait in waits if wait is not None), default=None)

    def _check_sidecar(self) -> None:
        if self._sidecar:
            if self._sidecar.check():
                # the number of its closed descriptor may be reused
                self._events.set_group("sidecar", (), wake)
            self._events.set_group("sidecar", self._sidecar.watched(), wake)

    def _end(self) -> AttemptResult:
        stopped_by = self._stop.first
        self._events.set_group("attempt", (), wake)
        if self._hang and self._watchdog:
            self._watchdog.dump_stacks()
        exits = self._running.reap()
        self._reaped = True
        self._drain_connections()
        stragglers = self._watchdog.stragglers if self._watchdog else ()
        return AttemptResult(
            exits, self._explanation(exits.first), stopped_by, self._hang, stragglers
        )

    def _drain_connections(self) -> None:
        """Read the messages that ranks sent before they ended: they are still in sockets, some of
        which have not been accepted yet.
        """
        while self._accept():
            continue
        for number in list(self._connections):
            self._receive(number)

    def _explanation(self, first: RankExit | None) -> RankError | None:
        """An error that no restart fixes, else the error that the first casualty reported. A
        survivor could only report that it lost its peer.
        """
        incurable = [t for t in self._rank_errors if t.exit_code in INCURABLE]
        own = [t for t in self._rank_errors if first is not None and t.rank == first.rank]
        return next(iter([*incurable, *own]), None)

    def _accept(self) -> bool:
        """Accept the next waiting connection; False if there is none."""
        connection = self._listener.accept()
        if connection is None:
            return False
        number = connection.socket.fileno()
        self._connections[number] = connection
        self._events.add(number, lambda: self._receive(number))
        return True

    def _receive(self, number: int) -> None:
        connection = self._connections[number]
        messages, hung_up = connection.receive()
        for message in messages:
            self._dispatch(message, connection)
        if hung_up and number in self._connections:
            self._detach(connection)
            connection.socket.close()

    def _detach(self, connection: Connection) -> None:
        """Stop listening to the connection, without closing it."""
        number = connection.socket.fileno()
        self._events.drop(number)
        del self._connections[number]

    def _dispatch(self, message: Message, connection: Connection) -> None:
        if isinstance(message, Hello):
            if message.attempt == self._attempt and not self._reaped:
                self._on_hello(message, connection)
        elif isinstance(message, Progress):
            self._on_progress(message)
        elif isinstance(message, RankError):
            self._rank_errors.append(message)
        elif isinstance(message, Notice) and self._context:
            self._context.tell(visible(message.text))

    def _on_hello(self, hello: Hello, connection: Connection) -> None:
        self._running.introduce(hello.rank, hello.pid)
        connection.answer(self._context.fds if self._context else ())
        if self._watchdog:
            self._watchdog.add_rank(hello)

    def _close(self) -> None:
        self._events.close()
        if self._watchdog:
            self._watchdog.close()
        for connection in self._connections.values():
            connection.socket.close()


def wake() -> None:
    """Does nothing: the loop checks everything after each turn."""


def _ignore_progress(progress: Progress) -> None:
    """The progress callback before `run`."""
