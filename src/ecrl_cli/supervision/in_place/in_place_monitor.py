"""Monitors an attempt with in-place recovery: when ranks die, the survivors are notified, leave the attempt together and wait for the next one."""

from __future__ import annotations

from dataclasses import replace

from ecrl_cli.linux.clock import monotonic
from ecrl_cli.records.messages import Hello, LeftAttempt, SpareReady
from ecrl_cli.supervision.attempts.restart_policy import INCURABLE
from ecrl_cli.supervision.attempts.stop_signals import StopSignals
from ecrl_cli.supervision.in_place.worker_pool import WorkerPool
from ecrl_cli.supervision.launch.zygote import ZygoteAttempt
from ecrl_cli.supervision.watch.attempt_monitor import AttemptCompanion, AttemptMonitor, AttemptResult, look
from ecrl_cli.supervision.watch.control_server import Connection, Message
from ecrl_cli.supervision.watch.graceful_stop import stepping
from ecrl_cli.supervision.watch.watchdog import WatchdogContext


class InPlaceMonitor(AttemptMonitor):
    """Runs until every rank that has not ended has left, and keeps the spares warm meanwhile.

    It ends like any other attempt, with nothing of it left running, if no rank is left, the zygote has died (and with it the ranks' store), a
    rank reports an error that no recovery fixes or that corrupted its peers' state, or the run is to stop before all have left.
    """

    def __init__(
        self, running: ZygoteAttempt, crew: WorkerPool, stop: StopSignals, companion: AttemptCompanion | None, post: WatchdogContext
    ) -> None:
        super().__init__(running, post.attempt_spec.attempt, crew.listener, stop, companion, post)
        self._live, self._workers, self._heartbeats = running, crew, post.heartbeats
        self._known_dead: frozenset[int] = frozenset()
        self._met: set[Connection] = set()
        crew.spares.serve(running)

    def _finished(self) -> bool:
        self._running.check()
        self._mark_dead(self._live.dead - self._known_dead)
        return self._live.orphaned or self._hopeless or self._all_left

    @property
    def _all_left(self) -> bool:
        living = self._live.living
        return living is not None and living <= set(self._workers.survivors)

    def _mark_dead(self, dead: frozenset[int]) -> None:
        for rank in sorted(dead):
            self._heartbeats.mark_dead(rank)
            self._workers.mark_dead(rank)
            if self._watchdog:
                self._watchdog.mark_dead(rank)
        if dead:
            self._known_dead |= dead
            if self._workers.ahead:
                self._workers.ahead.begin()
            self._hear_what_is_left()

    @property
    def _hopeless(self) -> bool:
        return bool(self._known_dead) and any(trouble.spoilt or trouble.exit_code in INCURABLE for trouble in self._troubles)

    def _look_after_companion(self) -> None:
        super()._look_after_companion()
        spares = self._workers.spares
        self._watch.keep("spares", (), look)  # `spares.look` closes descriptors whose numbers may be reused
        spares.look()
        if stepping(self._heartbeats):  # only once the ranks are stepping: spares must not slow down their start
            spares.refill()
        self._watch.keep("spares", spares.watched(), look)

    def _end(self) -> AttemptResult:
        if self._live.orphaned or self._hopeless or not self._all_left or not self._workers.survivors:
            ended = super()._end()
            self._workers.dismiss()
            return ended
        self._watch.keep("attempt", (), look)
        exits = self._live.release()
        self._reaped = True
        self._hear_what_is_left()
        stragglers = self._watchdog.stragglers if self._watchdog else ()
        return AttemptResult(replace(exits, noticed_at=monotonic()), self._explanation(exits.first), None, None, stragglers)

    def _take(self, message: Message, connection: Connection) -> None:
        if isinstance(message, LeftAttempt):
            if message.attempt == self._attempt and not self._reaped and self._running.pids().get(message.rank) == message.pid:
                self._part(connection)
                self._workers.leave(message, connection)
        elif isinstance(message, SpareReady):
            self._part(connection)
            self._workers.spares.stand_by(message, connection)
        else:
            super()._take(message, connection)

    def _meet(self, hello: Hello, connection: Connection) -> None:
        self._met.add(connection)
        super()._meet(hello, connection)

    def _close(self) -> None:
        for connection in list(self._connections.values()):
            if connection not in self._met:
                self._part(connection)
                self._workers.spares.keep(connection)
        super()._close()
