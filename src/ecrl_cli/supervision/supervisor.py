"""The supervisor's attempt loop: launch, monitor, reconcile checkpoints, decide; until the target
is reached or the run has to stop.
"""

from __future__ import annotations

import contextlib
import signal
from dataclasses import replace
from pathlib import Path

from ecrl_cli.checkpoint.capture.shared_memory import SnapshotPair
from ecrl_cli.checkpoint.store.examination import CheckpointPrevalidator
from ecrl_cli.checkpoint.store.store import CheckpointStore, StoreConfig
from ecrl_cli.config.recoveries import survivors_stay
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.errors import EcrlError, InputError, Stopped, StorageError, visible
from ecrl_cli.failures.plan import read_plan
from ecrl_cli.linux import processes
from ecrl_cli.records.events import TARGET_REACHED, Attempt, SupervisorRecord
from ecrl_cli.records.heartbeat_table import HeartbeatTable
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import AttemptSpec, Progress
from ecrl_cli.records.output_log import last_words
from ecrl_cli.records.run_config import read_run_config
from ecrl_cli.records.survivor_records import SURVIVED
from ecrl_cli.supervision.attempts.checkpoint_reconciliation import (
    reconcile_checkpoints,
    still_kept,
)
from ecrl_cli.supervision.attempts.restart_policy import Decision, charged_attempts, decide
from ecrl_cli.supervision.attempts.stop_signals import StopSignals
from ecrl_cli.supervision.attempts.supervisor_faults import (
    WallClockFaults,
    attempts_with_faults,
    inject_between_attempts,
    supervised_s,
)
from ecrl_cli.supervision.attempts.supervisor_record import (
    SupervisorRecordWriter,
    refresh_run_config,
    step_range,
)
from ecrl_cli.supervision.console import UI
from ecrl_cli.supervision.in_place.in_place_recovery import InPlaceRecovery, RestartAll
from ecrl_cli.supervision.in_place.regroup_plan import steps_of, write_regroup_launch
from ecrl_cli.supervision.launch.launcher import (
    Launcher,
    LauncherCache,
    LaunchSpec,
    RunningAttempt,
    needs_private_network,
)
from ecrl_cli.supervision.launch.slurm_allocation import NodePlacement, place_attempt
from ecrl_cli.supervision.launch.writer_process import WriterProcess
from ecrl_cli.supervision.launch.zygote import preload
from ecrl_cli.supervision.resume import (
    ResumePlan,
    choose,
    or_initial,
    order,
    quarantine_rejected,
    state_of,
)
from ecrl_cli.supervision.run_lock import RunLock, run_lock
from ecrl_cli.supervision.watch.attempt_monitor import AttemptResult
from ecrl_cli.supervision.watch.control_server import ControlServer
from ecrl_cli.supervision.watch.graceful_stop import GraceBudget, must_not_launch
from ecrl_cli.supervision.watch.watchdog import WatchdogContext

# time for the writer to finish when the run is to stop; everything has ended within five seconds
STOP_GRACE_S = 3.0


def supervise(
    config: RunConfig, layout: RunLayout, ui: UI, launcher: Launcher | None = None
) -> SupervisorRecord:
    """Run attempts of the run in `layout` (which has its config.json) until the target is reached;
    returns the content of supervisor.json.

    Any other end is raised once everything is recorded: Stopped (130, 143), Hung (6), NoProgress
    (7), RunHeld (8), InputError (2), NoValidCheckpoint (4), StorageError (5). A given `launcher` is
    not closed: it may serve the next run. A stop signal that came too late to stop the run is
    raised again at the end: the caller may have more to stop.
    """
    layout = RunLayout(Path(layout.root).resolve())
    processes.become_subreaper()
    try:
        with contextlib.ExitStack() as stack:
            stop = StopSignals()
            stack.callback(stop.pass_on)
            stack.enter_context(stop)
            stack.callback(ui.close)
            lock = stack.enter_context(run_lock(layout))
            refresh_run_config(config, layout)
            own = stack.enter_context(contextlib.closing(LauncherCache()))
            with contextlib.closing(
                Supervisor(config, layout, ui, launcher or own.of(config, read_plan(layout)), stop)
            ) as supervisor:
                return supervisor.run(lock)
    except OSError as error:
        raise StorageError.of("supervise", error.filename or layout.root, error) from error


class Supervisor:
    """One supervisor session of a run."""

    def __init__(
        self, config: RunConfig, layout: RunLayout, ui: UI, launcher: Launcher, stop: StopSignals
    ) -> None:
        self._config, self._layout, self._ui, self._launcher, self._stop = (
            config,
            layout,
            ui,
            launcher,
            stop,
        )
        run_id = read_run_config(layout).run_id
        self._record_writer = SupervisorRecordWriter(layout, run_id, config.target_steps)
        self._private_network = needs_private_network(read_plan(layout))
        self._store = CheckpointStore(layout.checkpoints, StoreConfig.of(config, run_id))
        self._heartbeats = HeartbeatTable.create(
            max(config.world_size, *config.elastic.schedule.values())
            if config.elastic.schedule
            else config.world_size
        )
        self._snapshots = SnapshotPair.create() if strategy_of(config).snapshots else None
        self._writer = WriterProcess(layout, self._heartbeats)
        self._grace = GraceBudget(layout, config.supervision.grace_s, ui.note)
        self._listener: ControlServer | None = None
        self._running: RunningAttempt | None = None
        self._placement = NodePlacement((), config.world_size)
        self._recovery = RestartAll()
        self._prevalidator = CheckpointPrevalidator(self._store)
        # attempts whose checkpoints the writer may still be writing
        self._unreconciled: tuple[int, ...] = ()

    def run(self, lock: RunLock) -> SupervisorRecord:
        processes.sweep(processes.of_run(self._layout.root))
        self._listener = ControlServer(self._layout)
        if survivors_stay(self._config):
            self._recovery = InPlaceRecovery(
                self._config, self._listener, self._ui.note, self._prevalidator
            )
        # all: an earlier supervisor may have been killed before it did so
        for attempt in self._layout.attempts():
            reconcile_checkpoints(self._layout, attempt, self._store)
        self._record_writer.begin()
        decision = (
            Decision("completed", TARGET_REACHED)
            if self._record_writer.at_target(self._config)
            else Decision("running", "")
        )
        while decision.restart:
            decision = self._next_attempt(lock)
        record = self._record_writer.end(
            decision.status, decision.reason, tuple(self._stop.received()), self._writer.deaths
        )
        self._ui.ended(record)
        if decision.error:
            raise decision.error
        return record

    def close(self) -> None:
        """End all processes of the run, however this session ended."""
        if self._running:
            self._running.kill()
            self._running.reap()
        self._recovery.close()
        self._writer.close()
        self._prevalidator.close()
        self._heartbeats.close()
        if self._snapshots:
            self._snapshots.close()
        if self._listener:
            self._listener.close()
        self._store.close()

    def _next_attempt(self, lock: RunLock) -> Decision:
        """One attempt, from the choice of its checkpoint to the decision what follows."""
        if must_not_launch(self._stop, self._config, carried=bool(self._recovery.regroup.memory)):
            return self._stopped(self._stop.received()[0])
        try:
            attempt, attempt_spec = self._prepare()
        except Stopped as error:
            self._stop.obeyed = True
            return Decision("stopped", error.line(), error)
        except EcrlError as error:
            return Decision(
                "refused" if isinstance(error, InputError) else "gave_up", error.line(), error
            )
        lock.note(attempt.attempt)
        self._grace.check()
        self._ui.launched(attempt_spec)
        ended = self._run_attempt(attempt, attempt_spec)
        self._recovery.plan_next(
            attempt_spec, self._stop, reached=self._layout.attempt(attempt.attempt).final.exists()
        )
        # stop signal while survivors left; no attempt will continue with their state
        if not ended.stopped_by and not self._recovery.regroup.memory:
            ended = replace(ended, stopped_by=self._stop.first)
        self._close_attempt(attempt.attempt, ended)
        return self._conclude(attempt, attempt_spec, ended)

    def _prepare(self) -> tuple[Attempt, AttemptSpec]:
        earlier = self._record_writer.record.attempts
        self._placement = place_attempt(self._config)
        inject_between_attempts(
            self._layout,
            self._store,
            self._config.seed,
            earlier,
            chooses=not self._recovery.regroup.memory,
        )
        choice = ResumePlan(None, ())
        if self._recovery.regroup.memory:
            attempt_spec = write_regroup_launch(self._layout, earlier, self._recovery.regroup)
        else:
            choice = choose(
                self._layout,
                self._store,
                earlier,
                self._snapshots,
                self._record_writer.session,
                self._prevalidator,
            )
            choice = or_initial(choice, self._layout, self._config, self._store)
            attempt_spec = order(
                self._layout, self._config, earlier, choice, self._placement, self._recovery.regroup
            )
        attempt = Attempt(
            attempt=attempt_spec.attempt,
            world_size=attempt_spec.world_size,
            resumed_from_step=attempt_spec.resume_step,
            resumed_from=attempt_spec.resume_from,
            rejected=choice.rejected,
            launched_at=attempt_spec.launched_at,
            continues=attempt_spec.continues,
            memory=attempt_spec.memory,
            snapshot_sha256=attempt_spec.snapshot_sha256,
            snapshot_state=choice.snapshot.content.state_digest if choice.snapshot else "",
            forgone=choice.skipped,
            resumed_state=state_of(self._layout, choice),
            origins=attempt_spec.origins,
            joined=attempt_spec.joined,
        )
        return attempt, attempt_spec

    def _run_attempt(self, attempt: Attempt, attempt_spec: AttemptSpec) -> AttemptResult:
        if strategy_of(self._config).needs_writer:
            self._writer.start()
        self._heartbeats.clear()
        supervision = self._config.supervision
        spec = LaunchSpec(
            layout=self._layout,
            order=attempt_spec,
            threads=self._config.threads,
            port=supervision.master_port,
            preload=preload(self._config),
            nodes=self._placement.nodes,
            private_network=self._private_network,
            existing_pids=self._recovery.choose(attempt_spec, self._heartbeats),
        )
        self._record_writer.open(attempt)
        quarantine_rejected(self._layout, self._store, attempt.rejected)
        self._running = self._launcher.launch(spec)
        saves = strategy_of(self._config).saves
        logs, began = (
            self._layout.attempt(attempt_spec.attempt),
            self._record_writer.record.sessions[-1].started_at,
        )
        faults = WallClockFaults(
            self._layout, attempt_spec.attempt, began, lambda: supervised_s(self._layout)
        )
        context = WatchdogContext(
            self._heartbeats,
            supervision,
            attempt_spec,
            logs,
            saves,
            self._ui.note,
            faults,
            self._snapshots,
        )
        assert self._listener is not None
        ended = self._recovery.monitor(
            self._running, self._listener, self._stop, self._writer, context
        ).run(self._on_progress)
        self._running = None
        return ended

    def _on_progress(self, progress: Progress) -> None:
        self._ui.progress(progress)
        self._grace.hear(progress)

    def _close_attempt(self, attempt: int, ended: AttemptResult) -> None:
        """Let the writer finish, or kill it; then kill what else is left; then reconcile every open
        checkpoint.

        Ranks that continue with their state in memory do not wait for the writer: it finishes
        meanwhile, and these checkpoints are reconciled later.
        """
        self._ui.state(
            "stopping" if ended.stopped_by else "dead" if not ended.succeeded else "finishing"
        )
        self._unreconciled = (*self._unreconciled, attempt)
        self._recovery.collect_pids()
        if not self._recovery.regroup.memory:
            grace = self._config.supervision.writer_grace_s
            self._writer.drain(min(STOP_GRACE_S, grace) if ended.stopped_by else grace, self._stop)
        processes.sweep(
            processes.of_run(self._layout.root), (*self._writer.pids, *self._recovery.pids)
        )
        if not self._recovery.regroup.memory or not self._writer.pids:
            for each in self._unreconciled:
                reconcile_checkpoints(self._layout, each, self._store)
            self._unreconciled = ()

    def _conclude(
        self, attempt: Attempt, attempt_spec: AttemptSpec, ended: AttemptResult
    ) -> Decision:
        # even if a process failed after that
        reached = self._layout.attempt(attempt_spec.attempt).final.exists()
        casualty = ended.exits.first
        first_step, last_step = steps_of(
            attempt, step_range(self._layout, attempt_spec.attempt), self._recovery.regroup
        )
        resized = (
            ended.succeeded and attempt_spec.until is not None and last_step == attempt_spec.until
        )  # ranks exit with 0 only once that step is durable
        last = self._record_writer.update(
            outcome=(
                SURVIVED if self._recovery.regroup.memory else _outcome(ended, reached, resized)
            ),
            exit_code=(
                casualty.exit_code if casualty else None if ended.stopped_by or ended.hang else 0
            ),
            signal=casualty.signal if casualty else None,
            rank=casualty.rank if casualty else None,
            first_step=first_step,
            last_step=last_step,
            ended_at=ended.exits.noticed_at,
            hang=ended.hang,
            stragglers=ended.stragglers,
        )
        if ended.stopped_by and not reached:
            return self._stopped(ended.stopped_by)
        record = self._record_writer.record
        planned = attempts_with_faults(self._layout)
        decision = decide(
            charged_attempts(record.attempts, record.sessions),
            self._config.supervision.max_restarts,
            ended.rank_error,
            planned,
            "" if last.attempt in planned else self._last_words(last),
        )
        if decision.restart:
            decision = replace(
                decision, reason=self._recovery.describe(decision.reason, attempt_spec.world_size)
            )
        if resized and decision.restart:
            self._ui.resized(last)
        elif not reached:
            self._ui.died(last, decision.reason)
        return decision

    def _last_words(self, attempt: Attempt) -> str:
        """The last words of an attempt that ended with an exit code; empty for any other."""
        if not attempt.exit_code:
            return ""
        try:
            return visible(last_words(self._layout.attempt(attempt.attempt).output))
        except OSError:
            return ""

    def _stopped(self, number: int) -> Decision:
        name = signal.Signals(number).name
        self._stop.obeyed = True
        newest = max(still_kept(self._layout, self._record_writer.record.attempts), default=None)
        durable = "nothing was saved yet" if newest is None else f"step {newest} is durable"
        return Decision(
            "stopped",
            f"stopped by {name}; {durable}",
            Stopped(name, f"stopped; {durable}", "the same command goes on with it"),
        )


def _outcome(ended: AttemptResult, reached: bool, resized: bool) -> str:
    """`reached`: the final record exists, which counts even if a process failed after that."""
    if reached:
        return "completed"
    if ended.stopped_by:
        return "stopped"
    return "hung" if ended.hang else "resized" if resized else "died"
