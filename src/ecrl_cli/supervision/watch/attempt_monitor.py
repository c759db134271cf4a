"""Monitors one attempt from launch to the end of its last process, in an event loop that waits on descriptors only."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from ecrl_cli.linux.clock import monotonic
from ecrl_cli.records.events import Hang, Straggler
from ecrl_cli.records.messages import Hello, Progress, RankError
from ecrl_cli.supervision.attempts.restart_policy import INCURABLE
from ecrl_cli.supervision.attempts.stop_signals import StopSignals
from ecrl_cli.supervision.launch.launcher import RankExit, RankExits, RunningAttempt
from ecrl_cli.supervision.watch.control_server import Connection, ControlServer, Message
from ecrl_cli.supervision.watch.event_loop import EventLoop
from ecrl_cli.supervision.watch.graceful_stop import GracefulStop
from ecrl_cli.supervision.watch.watchdog import AttemptWatchdog, WatchdogContext


@dataclass(frozen=True)
class AttemptResult:
    """How an attempt ended. Each of these may be missing.

    `trouble`: the error, reported by a rank, that explains the end. `stopped_by`: the stop signal. `hang`: the hang for which it was killed.
    """

    exits: RankExits
    trouble: RankError | None
    stopped_by: int | None
    hang: Hang | None = None
    stragglers: tuple[Straggler, ...] = ()

    @property
    def well(self) -> bool:
        """Every rank ended by itself with exit code 0."""
        asked = self.stopped_by is not None or self.hang is not None
        return self.exits.first is None and not asked and all(rank.good for rank in self.exits.ranks)


class AttemptCompanion(Protocol):
    """A process that serves the attempt and is replaced when it dies: the background writer."""

    @property
    def pids(self) -> tuple[int, ...]: ...
    def watched(self) -> Collection[int]: ...
    def check(self) -> bool: ...
    def give_up(self) -> None: ...


class AttemptMonitor:
    """Watches a running attempt for deaths, messages and stop signals; with a `post`, also for hangs."""

    def __init__(
        self,
        running: RunningAttempt,
        attempt: int,
        listener: ControlServer,
        stop: StopSignals,
        companion: AttemptCompanion | None = None,
        post: WatchdogContext | None = None,
    ) -> None:
        self._running, self._attempt, self._listener, self._stop = running, attempt, listener, stop
        self._companion, self._context = companion, post
        self._watchdog = AttemptWatchdog(post, companion, monotonic()) if post else None
        self._graceful_stop = post.graceful_stop(stop) if post else GracefulStop(stop, None, 0.0)
        self._hang: Hang | None = None
        self._connections: dict[int, Connection] = {}
        self._troubles: list[RankError] = []
        self._on_progress: Callable[[Progress], None] = _nothing_to_show
        self._reaped = False
        self._watch = EventLoop()

    def run(self, on_progress: Callable[[Progress], None]) -> AttemptResult:
        """Run until the attempt is over or is to stop; all its processes have ended when this returns."""
        self._on_progress = on_progress
        self._watch.add(self._listener, self._accept)
        self._watch.add(self._stop, look)
        try:
            while not self._over():
                self._watch.keep("attempt", self._running.watched(), look)
                self._look_after_companion()
                self._watch.turn(self._pause_s())
            return self._end()
        finally:
            self._close()

    def _over(self) -> bool:
        now = monotonic()
        if self._finished() or self._graceful_stop.over(now):
            return True
        if self._context and self._context.wall_clock_faults:
            self._context.wall_clock_faults.inject_due(now, self._running.pids())
        self._hang = self._watchdog.check(now) if self._watchdog else None
        return self._hang is not None

    def _finished(self) -> bool:
        """Whether the attempt is over because of what its ranks did."""
        return self._running.check()

    def _pause_s(self) -> float | None:
        """The longest time in seconds to wait for events; None: without limit."""
        now, strikes = monotonic(), self._context.wall_clock_faults if self._context else None
        waits = [self._watchdog.every_s if self._watchdog else None, self._graceful_stop.left_s(now), strikes.left_s(now) if strikes else None]
        return min((wait for wait in waits if wait is not None), default=None)

    def _look_after_companion(self) -> None:
        if self._companion:
            if self._companion.check():
                self._watch.keep("companion", (), look)  # the number of its closed descriptor may be reused
            self._watch.keep("companion", self._companion.watched(), look)

    def _end(self) -> AttemptResult:
        asked = self._stop.first
        self._watch.keep("attempt", (), look)
        if self._hang and self._watchdog:
            self._watchdog.dump_stacks()
        exits = self._running.reap()
        self._reaped = True
        self._hear_what_is_left()
        stragglers = self._watchdog.stragglers if self._watchdog else ()
        return AttemptResult(exits, self._explanation(exits.first), asked, self._hang, stragglers)

    def _hear_what_is_left(self) -> None:
        """Read the messages that ranks sent before they ended: they are still in sockets, some of which have not been accepted yet."""
        while self._accept():
            continue
        for number in list(self._connections):
            self._hear(number)

    def _explanation(self, first: RankExit | None) -> RankError | None:
        """An error that no restart fixes, else the error that the first casualty reported. A survivor could only report that it lost its peer."""
        incurable = [t for t in self._troubles if t.exit_code in INCURABLE]
        own = [t for t in self._troubles if first is not None and t.rank == first.rank]
        return next(iter([*incurable, *own]), None)

    def _accept(self) -> bool:
        """Accept the next waiting connection; False if there is none."""
        connection = self._listener.accept()
        if connection is None:
            return False
        number = connection.socket.fileno()
        self._connections[number] = connection
        self._watch.add(number, lambda: self._hear(number))
        return True

    def _hear(self, number: int) -> None:
        connection = self._connections[number]
        messages, hung_up = connection.receive()
        for message in messages:
            self._take(message, connection)
        if hung_up and number in self._connections:
            self._part(connection)
            connection.socket.close()

    def _part(self, connection: Connection) -> None:
        """Stop listening to the connection, without closing it."""
        number = connection.socket.fileno()
        self._watch.drop(number)
        del self._connections[number]

    def _take(self, message: Message, connection: Connection) -> None:
        if isinstance(message, Hello):
            if message.attempt == self._attempt and not self._reaped:
                self._meet(message, connection)
        elif isinstance(message, Progress):
            self._on_progress(message)
        elif isinstance(message, RankError):
            self._troubles.append(message)

    def _meet(self, hello: Hello, connection: Connection) -> None:
        self._running.introduce(hello.rank, hello.pid)
        connection.answer(self._context.fds if self._context else ())
        if self._watchdog:
            self._watchdog.add_rank(hello)

    def _close(self) -> None:
        self._watch.close()
        if self._watchdog:
            self._watchdog.close()
        for connection in self._connections.values():
            connection.socket.close()


def look() -> None:
    """Does nothing: the loop checks everything after each turn."""


def _nothing_to_show(progress: Progress) -> None:
    """The progress callback before `run`."""
