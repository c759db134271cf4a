"""Checks everything before anything is written: arguments, sweep, machine, folders, data."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from ecrl_cli.cli.arguments import Arguments
from ecrl_cli.cli.compose import ComposedRun, Grid, compose_grid
from ecrl_cli.cli.launcher_settings import JobLauncher
from ecrl_cli.config.codec import encode
from ecrl_cli.config.elastic import common_multiple
from ecrl_cli.config.estimates import human_seconds, seconds
from ecrl_cli.config.identity import run_id, run_name
from ecrl_cli.config.machine import check_machine, check_torch
from ecrl_cli.config.schema import DATASETS, MODELS, DatasetConfig, RunConfig
from ecrl_cli.config.tasks import CLASSIFICATION
from ecrl_cli.data.preflight import known_size, without_held_out
from ecrl_cli.data.preflight import prepare as prepare_data
from ecrl_cli.errors import ConfigError, RunDirectoryError, plural, visible
from ecrl_cli.records.layout import SweepLayout
from ecrl_cli.runs.environment import disagreements
from ecrl_cli.runs.run_dir import check_run_dir, claim_sweep, lost
from ecrl_cli.runs.run_plan import RunPlan, command_folder, plan_run, references
from ecrl_cli.supervision.launch.launcher import check_network
from ecrl_cli.supervision.launch.slurm_allocation import check_allocation
from ecrl_cli.supervision.run_lock import run_lock

Say = Callable[[str], None]


@dataclass(frozen=True)
class TrainPlan:
    """The runs of a command: the folder of the run or sweep; by run name, in order, each run's plan
    and what Hydra composed for it.

    `mixed`: by name, how an existing run differs (code, machine) from those started now.
    `launcher`: who runs the jobs. `master`: what Hydra composed for the whole command, with the
    sweep's folder in it.
    """

    folder: Path
    swept: bool
    runs: dict[str, RunPlan]
    cells: dict[str, ComposedRun]
    mixed: dict[str, str] = field(default_factory=dict)
    launcher: JobLauncher = field(default_factory=JobLauncher)
    master: Any = None


def prepare(arguments: Arguments, say: Say) -> TrainPlan:
    """The plan that `arguments` ask for; its data is present, unless it is only shown. Raises
    EcrlError with nothing written (a data set may have been downloaded).
    """
    launcher = arguments.launcher
    launcher.check_installed()
    grid = compose_grid(arguments, say)
    launcher.check_fits([cell.config for cell in grid.cells])
    plan = replace(_plan(grid), launcher=launcher)
    for run in () if launcher.on_slurm else plan.runs.values():
        check_machine(run.config)
        check_allocation(run.config)
        check_network(run.failures)
    _check_folders(plan)
    plan = _check_agreement(plan, arguments, say)
    if arguments.show:  # showing a configuration needs no data and must not download any
        return plan
    if not launcher.on_slurm:
        check_torch()
    plan = _with_data(plan, say)
    if not launcher.on_slurm:
        probe(run.config for run in plan.runs.values())
    return plan


def _plan(grid: Grid) -> TrainPlan:
    cells: dict[str, ComposedRun] = {}
    identities: dict[str, str] = {}
    # runs that differ only in keys their variant ignores have the same id and are run once
    for cell in grid.cells:
        identity = run_id(cell.config)
        name = run_name(cell.config, identity)
        if cells.setdefault(name, cell) is not cell and cells[name].overrides == cell.overrides:
            raise ConfigError(
                "sweep", f"run {name} comes up twice", "look for a value that is listed twice"
            )
        identities[name] = identity
    configs = [cell.config for cell in cells.values()]
    folder = command_folder(
        configs, list(identities.values()), swept=grid.swept, matrix=grid.matrix
    )
    grid.master.hydra.sweep.dir = str(folder / ".hydra")
    runs = {
        name: plan_run(cell.config, folder / name if grid.swept else folder, identities[name])
        for name, cell in cells.items()
    }
    return TrainPlan(folder, grid.swept, runs, cells, master=grid.master)


def _check_folders(plan: TrainPlan) -> None:
    """Checks each run directory; where a lock file exists, takes and releases `run_lock` to see
    that no other process holds it.
    """
    sweep = SweepLayout(plan.folder)
    if plan.swept:
        claim_sweep(sweep)
        if sweep.lock.exists():
            with run_lock(sweep):
                pass
    for run in plan.runs.values():
        if lost(run):
            continue
        check_run_dir(run)
        if not plan.swept and run.layout.lock.exists():
            with run_lock(run.layout):
                pass


def _check_agreement(plan: TrainPlan, arguments: Arguments, say: Say) -> TrainPlan:
    """RunDirectoryError where a sweep would mix runs of another code version or machine without
    --mix; for a single run it is only reported.
    """
    mixed = disagreements(
        {name: run.layout for name, run in plan.runs.items()}, code_alone=plan.launcher.on_slurm
    )
    for name, text in mixed.items():
        if plan.swept and not arguments.mix:
            fact = (
                f"holds {plural(len(mixed), 'run')} that another code or machine began (first:"
                f" {name}: {text})"
            )
            raise RunDirectoryError(
                "run_dir",
                fact,
                "choose another run_dir, or add --mix to let them stand beside new ones",
            )
        say(f"{name}: begun by another code or machine: {text}")
    return replace(plan, mixed={name: f"mixed: {text}" for name, text in mixed.items()})


def _with_data(plan: TrainPlan, say: Say) -> TrainPlan:
    """`plan` with the data sets present and the runs marked as checked; not marked where a download
    may have filled the disk, or where a run directory has vanished and was not checked.
    """
    checked: dict[DatasetConfig, bool] = {}
    for run in plan.runs.values():
        config = run.config
        size = known_size(config.dataset)
        if config.dataset not in checked:
            checked[config.dataset] = not prepare_data(config.dataset, say)
        if config.evaluate.every and without_held_out(config.dataset):
            fact = f"{config.dataset.name} has no held-out data here: every sample is trained on"
            raise ConfigError(
                "evaluate.every", fact, "hold some out, for example a fifth: dataset.held_out=360"
            )
        if size is not None and config.global_batch > size:
            fact = (
                f"{config.global_batch} is larger than the dataset ({size}): an epoch would have 0"
                " steps"
            )
            raise ConfigError(
                "global_batch", fact, f"use at most {size - size % common_multiple(config)}"
            )
    runs = {
        name: replace(run, checked=all(checked.values()) and not lost(run))
        for name, run in plan.runs.items()
    }
    return replace(plan, runs=runs)


def estimate(plan: TrainPlan) -> str:
    """A line on the rough cost of `scale=paper`, printed before it starts."""
    configs = [run.config for run in plan.runs.values()]
    on_cpu, on_gpu = (sum(seconds(config, gpus=gpus) for config in configs) for gpus in (0, 1))
    cpu, gpu = human_seconds(on_cpu * slowed_by_others()), human_seconds(on_gpu)
    steps = sum(config.target_steps for config in configs)
    what = f"{plural(steps, 'step')} in {plural(len(configs), 'run')}"
    return (
        f"scale=paper: {what}, roughly {cpu} on this CPU or {gpu} on a GPU; scale=smoke takes"
        " seconds"
    )


def expected_seconds(plan: TrainPlan) -> float:
    """Expected seconds for the rest of `plan` on this machine if it is idle; runs that have a
    metrics.json are done.
    """
    runs = (*plan.runs.values(), *references(plan.runs.values()))
    return sum(run.estimate_s for run in runs if not run.layout.metrics.exists()) / min(
        plan.launcher.runs_at_once, len(runs)
    )


@cache
def slowed_by_others() -> float:
    """How many times as long a run takes beside what else this machine does just now: twice, if all
    its processors are at work.
    """
    import psutil

    return 1 + psutil.cpu_percent(interval=0.1) / 100


def probe(configs: Iterable[RunConfig]) -> None:
    """ConfigError for the first of `configs` whose data set, model and task do not fit together,
    which a process with torch tries. What comes with ECRL and classifies is known to fit.
    """
    tried = set()
    for config in configs:
        parts = (config.dataset, config.model, config.task, config.precision, config.evaluate)
        known = (
            config.dataset.name in DATASETS
            and config.model.name in MODELS
            and config.task.name == CLASSIFICATION.name
        )
        if not known and parts not in tried:
            tried.add(parts)
            _probe(config)


def _probe(config: RunConfig) -> None:
    what = f"dataset={config.dataset.name} model={config.model.name} task={config.task.name}"
    command, limit = (
        [
            sys.executable,
            "-m",
            "ecrl_cli.training.probe",
        ],
        config.supervision.start_timeout_s,
    )
    given = json.dumps(encode(config))
    try:
        done = subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            "dataset",
            f"{what}: two samples took more than {limit:.0f} s",
            "raise supervision.start_timeout_s",
        ) from error
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, json.JSONDecodeError) as error:
        last = visible((done.stderr.splitlines() or [f"exit code {done.returncode}"])[-1])
        raise ConfigError(
            "dataset", f"{what}: trying two samples ended with {last}", "mend its package"
        ) from error
    if answer:
        raise ConfigError(answer["key"], answer["fact"], answer["remedy"])
