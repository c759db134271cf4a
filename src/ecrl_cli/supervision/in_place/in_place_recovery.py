"""Which processes of an attempt the next one reuses: none (`RestartAll`), or surviving ranks and
warm spares (`InPlaceRecovery`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ecrl_cli.checkpoint.store.examination import CheckpointPrevalidator
from ecrl_cli.config.recoveries import recovery_of
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.records.heartbeat_table import HeartbeatTable
from ecrl_cli.records.messages import AttemptSpec, Hello, LeftAttempt, SpareReady
from ecrl_cli.supervision.attempts.restart_policy import INCURABLE
from ecrl_cli.supervision.attempts.stop_signals import StopSignals
from ecrl_cli.supervision.in_place.regroup_plan import RegroupPlan, describe, plan_regroup
from ecrl_cli.supervision.in_place.worker_pool import WorkerPool
from ecrl_cli.supervision.launch.launcher import RunningAttempt
from ecrl_cli.supervision.launch.zygote import ZygoteAttempt
from ecrl_cli.supervision.watch.attempt_monitor import AttemptMonitor, AttemptResult, wake
from ecrl_cli.supervision.watch.control_server import Connection, ControlServer, Message
from ecrl_cli.supervision.watch.graceful_stop import stepping
from ecrl_cli.supervision.watch.watchdog import Sidecar, WatchdogContext


class InPlaceMonitor(AttemptMonitor):
    """Runs until every rank that has not ended has left, and keeps the spares warm meanwhile.

    It ends like any other attempt, with nothing of it left running, if no rank is left, the zygote
    has died (and with it the ranks' store), a rank reports an error that no recovery fixes or that
    corrupted its peers' state, or the run is to stop before all have left.
    """

    def __init__(
        self,
        running: ZygoteAttempt,
        workers: WorkerPool,
        stop: StopSignals,
        sidecar: Sidecar | None,
        context: WatchdogContext,
    ) -> None:
        super().__init__(
            running, context.attempt_spec.attempt, workers.listener, stop, sidecar, context
        )
        self._zygote_attempt, self._workers, self._heartbeats = running, workers, context.heartbeats
        self._known_dead: frozenset[int] = frozenset()
        self._greeted: set[Connection] = set()
        workers.spares.serve(running)

    def _finished(self) -> bool:
        self._running.check()
        self._mark_dead(self._zygote_attempt.dead - self._known_dead)
        return self._zygote_attempt.orphaned or self._unrecoverable or self._all_have_left

    @property
    def _all_have_left(self) -> bool:
        living = self._zygote_attempt.living
        return living is not None and living <= set(self._workers.survivors)

    def _mark_dead(self, dead: frozenset[int]) -> None:
        for rank in sorted(dead):
            self._heartbeats.mark_dead(rank)
            self._workers.mark_dead(rank)
            if self._watchdog:
                self._watchdog.mark_dead(rank)
        if dead:
            self._known_dead |= dead
            if self._workers.prevalidator:
                self._workers.prevalidator.begin()
            self._drain_connections()

    @property
    def _unrecoverable(self) -> bool:
        return bool(self._known_dead) and any(
            error.peers_corrupted or error.exit_code in INCURABLE for error in self._rank_errors
        )

    def _check_sidecar(self) -> None:
        super()._check_sidecar()
        spares = self._workers.spares
        # `spares.poll` closes descriptors whose numbers may be reused
        self._events.set_group("spares", (), wake)
        spares.poll()
        # only once the ranks are stepping: spares must not slow down their start
        if stepping(self._heartbeats):
            spares.refill()
        self._events.set_group("spares", spares.watched(), wake)

    def _end(self) -> AttemptResult:
        if (
            self._zygote_attempt.orphaned
            or self._unrecoverable
            or not self._all_have_left
            or not self._workers.survivors
        ):
            ended = super()._end()
            self._workers.dismiss()
            return ended
        self._events.set_group("attempt", (), wake)
        exits = self._zygote_attempt.release()
        self._reaped = True
        self._drain_connections()
        stragglers = self._watchdog.stragglers if self._watchdog else ()
        return AttemptResult(
            replace(exits, noticed_at=monotonic()),
            self._explanation(exits.first),
            None,
            None,
            stragglers,
        )

    def _dispatch(self, message: Message, connection: Connection) -> None:
        if isinstance(message, LeftAttempt):
            if (
                message.attempt == self._attempt
                and not self._reaped
                and self._running.pids().get(message.rank) == message.pid
            ):
                self._detach(connection)
                self._workers.leave(message, connection)
        elif isinstance(message, SpareReady):
            self._detach(connection)
            self._workers.spares.add_ready(message, connection)
        else:
            super()._dispatch(message, connection)

    def _on_hello(self, hello: Hello, connection: Connection) -> None:
        self._greeted.add(connection)
        super()._on_hello(hello, connection)

    def _close(self) -> None:
        for connection in list(self._connections.values()):
            if connection not in self._greeted:
                self._detach(connection)
                self._workers.spares.keep(connection)
        super()._close()


class RestartAll:
    """Every attempt begins with new processes. The supervisor calls its methods in this order, once
    per attempt.

    `regroup`: the plan of the next attempt; empty if none of its processes are left from the
    attempt before.
    """

    regroup = RegroupPlan()

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that wait for the next attempt."""
        return ()

    def choose(self, spec: AttemptSpec, heartbeats: HeartbeatTable) -> tuple[int, ...]:
        """The pids by rank of the processes that the attempt takes over; empty if all are to be
        launched.
        """
        return ()

    def monitor(
        self,
        running: RunningAttempt,
        listener: ControlServer,
        stop: StopSignals,
        sidecar: Sidecar | None,
        context: WatchdogContext,
    ) -> AttemptMonitor:
        """The monitor of the launched attempt."""
        return AttemptMonitor(
            running, context.attempt_spec.attempt, listener, stop, sidecar, context
        )

    def plan_next(self, spec: AttemptSpec, stop: StopSignals, *, reached: bool) -> None:
        """The attempt has ended: set `regroup`. `reached`: the run has reached its target."""

    def collect_pids(self) -> None:
        """Return once every process of the run that the next attempt may use is among `pids`."""

    def describe(self, death: str, world_size: int) -> str:
        """A short text about what happened and which ranks continue."""
        return death

    def close(self) -> None:
        """End all processes that wait."""


class InPlaceRecovery(RestartAll):
    """Survivors wait for the next attempt, and so do warm spares. `tell`: prints one line for the
    user. `prevalidator`: started when a rank dies, if the survivors then load a checkpoint.
    """

    def __init__(
        self,
        config: RunConfig,
        listener: ControlServer,
        tell: Callable[[str], None],
        prevalidator: CheckpointPrevalidator,
    ) -> None:
        self._config = config
        loads = not recovery_of(config).from_memory
        self._workers = WorkerPool(
            listener, config.supervision.spares, tell, prevalidator if loads else None
        )

    @property
    def pids(self) -> tuple[int, ...]:
        return self._workers.pids

    def choose(self, spec: AttemptSpec, heartbeats: HeartbeatTable) -> tuple[int, ...]:
        heartbeats.set_members(spec.world_size)
        return self._workers.choose(spec.origins, spec.joined)

    def monitor(
        self,
        running: RunningAttempt,
        listener: ControlServer,
        stop: StopSignals,
        sidecar: Sidecar | None,
        context: WatchdogContext,
    ) -> AttemptMonitor:
        assert isinstance(running, ZygoteAttempt), "a live run has the zygote"
        self._workers.assign(context.attempt_spec, running)
        return InPlaceMonitor(running, self._workers, stop, sidecar, context)

    def plan_next(self, spec: AttemptSpec, stop: StopSignals, *, reached: bool) -> None:
        """Plans with the survivors, if any. Waits for one warm spare per dead rank, as far as
        spares are configured.
        """
        self.regroup = RegroupPlan()
        if reached or not self._workers.survivors:
            return
        supervision, missing = (
            self._config.supervision,
            spec.world_size - len(self._workers.steps()),
        )
        spares = self._workers.gather(
            min(missing, supervision.spares), stop, supervision.start_timeout_s
        )
        self.regroup = plan_regroup(self._config, spec.world_size, self._workers.steps(), spares)
        if not self.regroup:
            self._workers.dismiss()

    def collect_pids(self) -> None:
        self._workers.spares.collect_pids()

    def describe(self, death: str, world_size: int) -> str:
        return describe(death, world_size, self.regroup)

    def close(self) -> None:
        self._workers.close()
