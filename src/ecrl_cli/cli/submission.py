"""Submits the runs of a command to a Hydra launcher, one job per run, and keeps the sweep's
manifest up to date.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from types import TracebackType
from typing import Any, Protocol

from hydra.core.global_hydra import GlobalHydra
from hydra.core.singleton import Singleton
from hydra.experimental.callback import Callback
from hydra.types import HydraContext

from ecrl_cli.cli.compose import PRIMARY, initialized
from ecrl_cli.cli.launcher_settings import LOCAL, SLURM
from ecrl_cli.cli.prepare import Say, TrainPlan
from ecrl_cli.cli.submitit_job import AT_WORK, SubmititJob, recorded
from ecrl_cli.config.elastic import may_shrink
from ecrl_cli.config.keys import quote
from ecrl_cli.config.omegaconf_bridge import resolved
from ecrl_cli.errors import EcrlError, RunHeld, plural
from ecrl_cli.records.journal import read_json
from ecrl_cli.records.layout import RunLayout, SweepLayout
from ecrl_cli.runs.run import FINISHED, RunResult
from ecrl_cli.runs.sweep import SweepManifest, fair_order, is_finished, row, status
from ecrl_cli.storage.files import write_json
from ecrl_cli.supervision.run_lock import run_lock

LOOK_EVERY_S = 2.0
QUEUED = RunResult(RunHeld.exit_code, "pending", "its job waits in the queue")
ANSWERS_WITHIN_S = 60.0  # a controller under load answers slowly
_NOT_BEGUN = RunResult(143, "stopped", "its job has not begun")
_SILENT = RunResult(
    143, "stopped", "its job ended without a word: its log lies in .hydra/.submitit"
)


class Submitted(Protocol):
    """A job that has been submitted."""

    @property
    def job_id(self) -> str: ...

    def results(self) -> Any:
        """Waits for the job's end; raises the launcher's error if the job was lost or cancelled."""


@dataclass(frozen=True)
class Engine:
    """A Hydra launcher plugin. `master`: what Hydra composed for the command; its `hydra.launcher`
    holds the plugin's settings.
    """

    name: str
    master: Any

    def start(
        self, job: SubmititJob, overrides: Sequence[Sequence[str]], nodes: int, spare: bool
    ) -> Sequence[Submitted]:
        """Submits one job for each of `overrides` and returns them in that order. Raises the
        launcher's errors.

        `nodes`: what each job needs; `spare`: the job survives the loss of a node. The plugin's own
        `launch` is not used: it waits for the jobs and fails all of them with the first that is
        lost.
        """
        # Imported here: the plugin is an optional extra, needed only where a launcher is chosen.
        from hydra_plugins.hydra_submitit_launcher.submitit_launcher import (  # type: ignore[import-untyped]
            LocalLauncher,
            SlurmLauncher,
        )

        settings = {
            key: value
            for key, value in resolved(self.master.hydra.launcher).items()
            if key != "_target_"
        }
        local = self.name == LOCAL
        launcher = (
            LocalLauncher(**settings)
            if local
            else SlurmLauncher(**slurm_settings(settings, nodes, spare))
        )
        folder = f"hydra.sweep.dir={quote(str(self.master.hydra.sweep.dir))}"
        with initialized(PRIMARY):  # each job composes its run on its own machine, with this Hydra
            callbacks: Any = Callback()  # empty: files may not name callbacks
            context = HydraContext(GlobalHydra.instance().config_loader(), callbacks)
            launcher.setup(hydra_context=context, task_function=job, config=self.master)
            state = Singleton.get_state()
            calls = [
                ([*each, folder], "hydra.sweep.dir", number, f"job_id_for_{number}", state)
                for number, each in enumerate(overrides)
            ]
            jobs: Sequence[Submitted] = _executor(launcher).map_array(
                launcher, *zip(*calls, strict=True)
            )
        return jobs


def _executor(launcher: Any) -> Any:
    """Submitit's executor with the plugin's settings; those that are not common to all executors
    get the executor's name as prefix.
    """
    import submitit  # comes with the plugin
    from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf  # type: ignore[import-untyped]

    kind, common = launcher._EXECUTOR, {field.name for field in fields(BaseQueueConf)}
    settings = {
        key if key in common else f"{kind}_{key}": value for key, value in launcher.params.items()
    }
    born = {key: settings.pop(key) for key in (f"{kind}_max_num_timeout",) if key in settings}
    executor = submitit.AutoExecutor(settings.pop("submitit_folder"), cluster=kind, **born)
    executor.update_parameters(**settings)
    return executor


def slurm_settings(settings: Mapping[str, Any], nodes: int, spare: bool) -> dict[str, Any]:
    """The plugin's settings for jobs of `nodes` nodes: the allocation has them all; the job's one
    task, the supervisor, runs on the first.
    """
    count = max(nodes, settings["nodes"])
    options = {
        "nodes": count,
        **({"no-kill": True} if spare else {}),
        **dict(settings["additional_parameters"] or {}),
    }
    first = ["--nodes=1", "--ntasks=1", "--overlap"]
    return {**settings, "nodes": 1, "additional_parameters": options, "srun_args": first}


def submit(plan: TrainPlan, engine: Engine, say: Say) -> dict[str, RunResult]:
    """Runs what is missing of `plan`, each run as a job of its own, and returns the state of every
    run once the jobs have ended.

    A run held by a job of an earlier submission is left to that job. RunHeld (exit 8) where another
    process submits into the same sweep.
    """
    layouts = {name: plan.runs[name].layout for name in fair_order(plan.runs)}
    plan.folder.mkdir(parents=True, exist_ok=True)
    with run_lock(SweepLayout(plan.folder)) if plan.swept else nullcontext():
        known = {name: result for name, layout in layouts.items() if (result := standing(layout))}
        missing = [name for name in layouts if name not in known]
        for name in missing:
            layouts[name].outcome.unlink(missing_ok=True)
        follower = ManifestUpdater(
            _manifest(plan, layouts), {name: layouts[name] for name in missing}, plan.mixed
        )
        follower.show(known)
        with follower:
            reasons = _wait(plan, engine, missing, say) if missing else {}
        ended = {
            name: known.get(name) or outcome(layout, reasons.get(name, ""))
            for name, layout in layouts.items()
        }
        follower.show(ended)
        return ended


def _wait(plan: TrainPlan, engine: Engine, names: Sequence[str], say: Say) -> dict[str, str]:
    """Submits and waits until every job has ended; returns the reason for each run whose job gave
    no result.
    """
    configs = {str(plan.runs[name].layout.root): plan.runs[name].config for name in names}
    nodes = max(config.supervision.nodes for config in configs.values())
    placed = [
        [
            *plan.cells[name].overrides,
            f"hydra.sweep.subdir={quote(str(plan.runs[name].layout.root))}",
        ]
        for name in names
    ]
    say(
        f"{plural(len(placed), 'job')} to {engine.name}; their logs:"
        f" {plan.folder / '.hydra' / '.submitit'}"
    )
    reasons: dict[str, str] = {}
    try:
        jobs = dict(
            zip(
                names,
                engine.start(
                    SubmititJob(configs), placed, nodes, any(map(may_shrink, configs.values()))
                ),
                strict=True,
            )
        )
        if engine.name == SLURM:
            for name, job in jobs.items():
                remember(plan.runs[name].layout, job.job_id)
        for name, job in jobs.items():
            try:
                job.results()
            except Exception as error:
                # the launcher's errors have no common base class; one lost job says nothing about
                # the others
                reasons[name] = _lost(engine, error, say)
    except KeyboardInterrupt:
        say("stopped waiting; the jobs go on, and the same command finds them (scancel ends them)")
        return dict.fromkeys(names, "nobody waited for its job") | reasons
    except Exception as error:
        return dict.fromkeys(names, _lost(engine, error, say))
    return reasons


def _lost(engine: Engine, error: Exception, say: Say) -> str:
    """The launcher's error in one line, printed and returned. For a job without output, the line
    with its state is preferred to the job's log.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [
        type(error).__name__
    ]
    line = next(
        (line for line in lines if line.startswith("has not produced any output")), lines[-1]
    )
    reason = f"{engine.name}: {line[:300]}"
    say(f"ecrl: error: E-engine {reason}")
    return reason


def standing(layout: RunLayout) -> RunResult | None:
    """The run's state before submission, where it needs no job: finished, or running or queued from
    an earlier submission; else None.
    """
    return FINISHED if is_finished(layout) else _under_way(layout)


def outcome(layout: RunLayout, reason: str) -> RunResult:
    """The run's state once its job is no longer waited for. `reason`: the launcher's error, if it
    gave one.
    """
    record = recorded(layout)
    if record is None or record == AT_WORK:
        silent = _NOT_BEGUN if record is None else _SILENT
        return _under_way(layout) or replace(silent, reason=reason or silent.reason)
    return record


def _under_way(layout: RunLayout) -> RunResult | None:
    """The state of a run whose job is running or queued; else None."""
    return AT_WORK if _busy(layout) else QUEUED if queued(layout) else None


def _busy(layout: RunLayout) -> bool:
    try:
        if layout.lock.exists():
            with run_lock(layout):
                return False
    except RunHeld:
        return True
    return False


def _manifest(plan: TrainPlan, names: Iterable[str]) -> SweepManifest | None:
    if not plan.swept:
        return None
    return SweepManifest(
        SweepLayout(plan.folder).manifest, [row(name, plan.runs[name]) for name in names]
    )


class ManifestUpdater:
    """Keeps the manifest up to date while jobs run: a single writer that reads the outcome file of
    each run.
    """

    def __init__(
        self,
        manifest: SweepManifest | None,
        layouts: Mapping[str, RunLayout],
        notes: Mapping[str, str],
    ) -> None:
        self._manifest, self._layouts, self._notes = manifest, layouts, notes
        self._shown: dict[str, RunResult] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="follower", daemon=True)

    def __enter__(self) -> ManifestUpdater:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def show(self, results: Mapping[str, RunResult]) -> None:
        """Writes the changed entries of `results`. Call only from the follower thread, or while it
        does not run.
        """
        for name, result in results.items():
            if self._manifest is None or self._shown.get(name) == result:
                continue
            self._shown[name] = result
            under_way = result.exit_code == RunHeld.exit_code
            note = self._notes.get(name, "") if under_way or not result.exit_code else result.reason
            reason = result.reason if result == QUEUED else note
            self._manifest.record(name, result.status if under_way else status(result), reason)

    def _follow(self) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            self.show(
                {
                    name: record
                    for name, layout in self._layouts.items()
                    if (record := recorded(layout))
                }
            )


def remember(layout: RunLayout, job_id: str) -> None:
    """Stores the Slurm job id of the run (`12`, or `12_3` in an array)."""
    layout.job.parent.mkdir(parents=True, exist_ok=True)
    write_json(layout.job, {"job_id": job_id})


def queued(layout: RunLayout) -> bool:
    """Whether Slurm still knows the job that the run was last submitted as. False if that cannot be
    found out: a duplicate submission is harmless, because the second job finds the run finished or
    held.
    """
    try:
        job = read_json(layout.job)["job_id"]
        squeue = subprocess.run(
            ["squeue", "-h", "-j", str(job), "-o", "%T"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=ANSWERS_WITHIN_S,
        )
    except (OSError, EcrlError, KeyError, TypeError, subprocess.TimeoutExpired):
        return False
    return squeue.returncode == 0 and bool(squeue.stdout.strip())
