"""One run, from its plan to metrics.json and the seal over its records."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import RenderableType

from ecrl_cli.checkpoint.store.catalog import entry_of
from ecrl_cli.config.codec import encode
from ecrl_cli.config.hmac_key import read_key
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.data.preflight import prepare
from ecrl_cli.errors import (
    STOPPED,
    EcrlError,
    NoProgress,
    NoValidCheckpoint,
    RecordError,
    RunHeld,
    Stopped,
    StorageError,
)
from ecrl_cli.failures.plan import describe
from ecrl_cli.history.load import RUNS_AT_ONCE, RunRecords, load, load_environment
from ecrl_cli.linux.clock import boot_id, monotonic
from ecrl_cli.metrics.disk import sampled
from ecrl_cli.metrics.document import metrics_document
from ecrl_cli.records.events import TARGET_REACHED, SupervisorRecord
from ecrl_cli.records.journal import read_json
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.run_config import write_run_config
from ecrl_cli.records.seal import make_seal, write_seal
from ecrl_cli.runs import supervisor_restarter
from ecrl_cli.runs.continuation import announcement, goes_on
from ecrl_cli.runs.environment import environment
from ecrl_cli.runs.periodic_scrub import scrubbed
from ecrl_cli.runs.run_dir import check_run_dir
from ecrl_cli.runs.run_plan import RunPlan
from ecrl_cli.runs.tracking.tracked import tracked
from ecrl_cli.storage.files import sync_directory, write_json
from ecrl_cli.supervision.attempts.supervisor_record import read_record
from ecrl_cli.supervision.console import UI, make_ui
from ecrl_cli.supervision.launch.launcher import Launcher, LauncherCache
from ecrl_cli.supervision.run_lock import held, run_lock
from ecrl_cli.supervision.supervisor import supervise
from ecrl_cli.verify.disk_state import on_disk

Say = Callable[[str], None]
WORTH_SAYING_S = 0.5


@dataclass(frozen=True)
class RunContext:
    """The parts that the runs of one command share.

    `say`: prints one line. `above`: renders what stands above a run's live bar (a sweep's table);
    None for a single run. `show`: makes a run's UI.
    """

    say: Say
    launchers: LauncherCache
    above: Callable[[], RenderableType] | None = None
    show: Callable[[RunConfig, RunLayout, Callable[[], RenderableType] | None], UI] = make_ui


@dataclass(frozen=True)
class RunResult:
    """How a run ended: exit code, terminal status of supervisor.json (`completed_prev`: it had
    finished before this command), reason.
    """

    exit_code: int
    status: str
    reason: str

    @property
    def stopped(self) -> bool:
        """Whether a signal stopped it: the same command resumes it."""
        return self.exit_code in STOPPED


FINISHED = RunResult(0, "completed_prev", "finished before")


def failed(error: EcrlError | OSError, say: Say) -> RunResult:
    """Print the one-line message of an expected error and turn the error into a result."""
    known = error if isinstance(error, EcrlError) else StorageError.of("run", error.filename, error)
    say(f"ecrl: error: {known.line()}")
    return RunResult(known.exit_code, "failed", known.line())


def run(planned: RunPlan, context: RunContext) -> RunResult:
    """Start or resume the planned run, or find it finished. Expected errors are returned as
    results, not raised.
    """
    try:
        return _run(planned, context)
    except EcrlError as error:
        return failed(error, context.say)


def _run(planned: RunPlan, context: RunContext) -> RunResult:
    layout, say = planned.layout, context.say
    more = goes_on(planned.config, layout)
    if finished(layout) and not more:
        say(f"{layout.root}: already at step {planned.config.target_steps}; nothing to do")
        return FINISHED
    refuse_held(layout)
    boot_id()  # without one no session can be recorded
    if not planned.checked:
        check_run_dir(planned)
    if completed(layout) and not more:  # completed, but killed before metrics.json was written
        with run_lock(layout):
            # no seal: the records may have been changed since the run ended
            write_metrics(layout, load(layout))
        return RunResult(0, "completed", TARGET_REACHED)
    if not planned.checked:
        prepare(planned.config.dataset, say)
    if layout.config.exists():
        check_records(layout)
        if planned.runs_at_once > 1:
            record_runs_at_once(layout, planned.runs_at_once)
    else:
        init_run_dir(planned)
    if more:
        say(f"{layout.root}: {announcement(planned.config)}")
    if planned.asked_digest:
        say(
            f"checkpoint.digest={planned.config.checkpoint.digest}, with which this run began, not"
            f" {planned.asked_digest}"
        )
    for line in describe(planned.failures):
        say(line)
    with tracked(planned.config, layout, say):
        try:
            record = _supervised(planned, context)
        except (Stopped, NoProgress, NoValidCheckpoint, StorageError):
            # nothing is written into a directory that was removed meanwhile
            if layout.config.exists():
                # metrics and seal are written for an unfinished run too; reports never average it
                end_run(layout, say)
            raise
        end_run(layout, say)
    return RunResult(0, record.terminal_status, record.reason)


def _supervised(planned: RunPlan, context: RunContext) -> SupervisorRecord:
    """Supervise the run in this process, or in a child process if the plan kills the supervisor."""
    config, layout, say = planned.config, planned.layout, context.say
    kept = supervisor_restarter.wanted(planned.failures)
    # before the UI: an interrupt while it warms up leaves no bar behind
    launcher = None if kept else warm(context.launchers, planned, say)
    with (
        sampled(layout.disk, config.supervision.disk_interval_s, say),
        scrubbed(layout, config, say),
    ):
        if kept:
            return supervisor_restarter.supervise_with_restarts(planned, say)
        return supervise(config, layout, context.show(config, layout, context.above), launcher)


def refuse_held(layout: RunLayout) -> None:
    """RunHeld, naming the holder, where another command is at work in the run directory: before
    anything is prepared or warmed up.
    """
    if held(layout):
        with run_lock(layout):  # refused, unless the other has just ended
            pass


def warm(launchers: LauncherCache, planned: RunPlan, say: Say) -> Launcher:
    """The launcher, warmed up. A warm-up of more than WORTH_SAYING_S is printed, because it counts
    towards no run's time.
    """
    began = monotonic()
    launcher = launchers.of(planned.config, planned.failures)
    spent = monotonic() - began
    if spent > WORTH_SAYING_S:
        say(
            f"{planned.config.supervision.launcher}: warm after {spent:.1f} s, which is on no run's"
            " clock"
        )
    return launcher


def completed(layout: RunLayout) -> bool:
    """Whether supervisor.json says that the run reached its target."""
    return layout.supervisor.exists() and read_record(layout).terminal_status == "completed"


def finished(layout: RunLayout) -> bool:
    """Whether the run is completed and metrics.json is written."""
    return completed(layout) and measured(layout)


def leaves_alone(planned: RunPlan) -> bool:
    """Whether `run` would begin no session there: the run has reached its target, or another
    command is at work in its directory. False where that cannot be told.
    """
    with contextlib.suppress(EcrlError, OSError):
        done = completed(planned.layout) and not goes_on(planned.config, planned.layout)
        return done or held(planned.layout)
    return False


def measured(layout: RunLayout) -> bool:
    """Whether metrics.json is that of the completed run, not of an earlier stop."""
    document = read_json(layout.metrics) if layout.metrics.exists() else None
    return isinstance(document, dict) and document.get("terminal_status") == "completed"


def check_records(layout: RunLayout) -> None:
    """RecordError if records of earlier attempts cannot be read: better now than after hours of
    training.
    """
    for trouble in load(layout).unread:
        if trouble.path.startswith("logs/"):
            raise RecordError(trouble.path, trouble.reason, "restore the file or start a new run")


def init_run_dir(planned: RunPlan) -> None:
    """Write environment.json, failures.json and last config.json, which makes the folder a run;
    before them the copy of the checkpoint that it begins with, if it does.
    """
    layout = planned.layout
    make_durably(layout.root)
    copy_initial(planned)
    write_json(
        layout.environment,
        environment(layout.root)
        | ({RUNS_AT_ONCE: planned.runs_at_once} if planned.runs_at_once > 1 else {}),
    )
    write_json(layout.failures, encode(planned.failures))
    write_run_config(layout, planned.config)


def copy_initial(planned: RunPlan) -> None:
    """Copy the checkpoint of another run that the run begins with, if it begins with one, into its
    directory, where a start that was killed may have left a part. It is checked before the launch.
    """
    if planned.initial is None or planned.layout.config.exists():
        return
    folder = planned.layout.initial
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in entry_of(planned.initial).files:
        if path.is_dir():
            shutil.copytree(path, folder / path.name)
        else:
            shutil.copy2(path, folder / path.name)


def record_runs_at_once(layout: RunLayout, runs_at_once: int) -> None:
    """Note in environment.json of a resumed run that others now train at the same time."""
    there = load_environment(layout)
    if there.get(RUNS_AT_ONCE, 1) < runs_at_once:
        write_json(layout.environment, there | {RUNS_AT_ONCE: runs_at_once})


def make_durably(folder: Path) -> None:
    """Create `folder` and its missing parents, and sync their directory entries."""
    missing = [above for above in folder.absolute().parents if not above.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for made in (folder.absolute(), *missing):
        # a parent directory with execute but no read permission
        with contextlib.suppress(PermissionError):
            sync_directory(made.parent)


def end_run(layout: RunLayout, say: Callable[[str], None]) -> None:
    """Write metrics and seal, unless another command has taken the run's lock meanwhile: it will
    write them at its own end.
    """
    with contextlib.suppress(RunHeld), run_lock(layout):
        records = load(layout)
        write_metrics(layout, records)
        seal_run(layout, records, say)


def write_metrics(layout: RunLayout, records: RunRecords) -> None:
    write_json(layout.metrics, metrics_document(records))


def seal_run(layout: RunLayout, records: RunRecords, say: Callable[[str], None]) -> None:
    """Write seal.json. A failure is printed, not raised: the run has ended all the same, and `ecrl
    verify` reports that it is not sealed.
    """
    try:
        key = read_key(records.stored.config.seal.key_file, "seal.key_file")
        commits = {c.path: c.report.commit_sha256 or "" for c in on_disk(records, contents=False)}
        status = records.supervisor.terminal_status if records.supervisor else ""
        write_seal(layout, make_seal(layout, records.stored.run_id, status, commits, key))
    except (EcrlError, OSError) as error:
        say(
            f"{layout.root.name}: not sealed"
            f" ({error.line() if isinstance(error, EcrlError) else error})"
        )
