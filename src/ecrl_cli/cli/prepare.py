"""Everything that can be refused is refused here, before anything is written: arguments, grid, machine, folders, data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ecrl_cli.cli.arguments import Arguments
from ecrl_cli.cli.compose import Cell, Grid, compose_grid
from ecrl_cli.cli.launcher_settings import check_engine, check_shape, chosen
from ecrl_cli.config.elastic import common_multiple
from ecrl_cli.config.estimates import human_seconds, seconds
from ecrl_cli.config.identity import run_name
from ecrl_cli.config.machine import check_machine, check_torch, visible_gpus
from ecrl_cli.config.schema import DatasetConfig, RunConfig
from ecrl_cli.data.preflight import known_size
from ecrl_cli.data.preflight import prepare as prepare_data
from ecrl_cli.errors import ConfigError, RunDirectoryError
from ecrl_cli.failures.plan import plan as planned
from ecrl_cli.records.layout import RunLayout, SweepLayout
from ecrl_cli.runs.compatibility import disagreements
from ecrl_cli.runs.naming import run_directory, sweep_directory
from ecrl_cli.runs.reference import to_train
from ecrl_cli.runs.run_dir_checks import check_run_dir, claim_sweep
from ecrl_cli.runs.run_dir_link import lost
from ecrl_cli.supervision.launch.netns_command import check_network
from ecrl_cli.supervision.launch.slurm_allocation import check_allocation
from ecrl_cli.supervision.run_lock import run_lock

Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What will be run: `folder` of the run or of the sweep, and the cells by run name, in order.

    `mixed`: by name, what sets a run that is there already apart from those that are started now. `engine`: whose jobs the runs are to be; empty:
    they run here. `master`: what Hydra composed for the whole command, with the sweep's folder in it.
    """

    folder: Path
    swept: bool
    cells: dict[str, Cell]
    mixed: dict[str, str] = field(default_factory=dict)
    engine: str = ""
    master: Any = None

    def run_dir(self, name: str) -> Path:
        return self.folder / name if self.swept else self.folder

    def configs(self) -> dict[str, RunConfig]:
        return {name: cell.config for name, cell in self.cells.items()}


def prepare(arguments: Arguments, say: Say) -> Plan:
    """The plan that `arguments` ask for, its data there unless it is only shown. Raises EcrlError with nothing written (a data set may have
    been downloaded)."""
    engine = chosen(arguments.engine)
    check_engine(engine)
    grid = compose_grid(arguments, say)
    plan = replace(_plan(grid), engine=engine)
    check_shape(engine, arguments.engine, [cell.config for cell in grid.cells])
    for config in plan.configs().values():
        planned(config)  # refused here where a failure cannot strike that run
    for config in () if engine == "submitit_slurm" else plan.configs().values():  # a job asks the machine that it finds itself on
        check_machine(config)
        check_allocation(config)
        check_network(config)
    _check_folders(plan)
    plan = _check_agreement(plan, arguments, say)
    if arguments.show:  # to look at a configuration needs no data, and must not download any
        return plan
    if engine != "submitit_slurm":
        check_torch()
    _check_data([cell.config for cell in grid.cells], say)
    return plan


def _plan(grid: Grid) -> Plan:
    cells: dict[str, Cell] = {}
    for cell in grid.cells:  # what a variant makes no matter of comes up again as the same run, which is then done once
        name = run_name(cell.config)
        if cells.setdefault(name, cell) is not cell and cells[name].overrides == cell.overrides:
            raise ConfigError("sweep", f"run {name} comes up twice", "look for a value that is listed twice")
    configs = [cell.config for cell in cells.values()]
    folder = sweep_directory(configs, grid.matrix) if grid.swept else run_directory(configs[0])
    folder = folder.absolute()
    grid.master.hydra.sweep.dir = str(folder / ".hydra")
    return Plan(folder, grid.swept, cells, master=grid.master)


def _check_folders(plan: Plan) -> None:
    sweep = SweepLayout(plan.folder)
    if plan.swept:
        claim_sweep(sweep)
        if sweep.lock.exists():
            with run_lock(sweep):
                pass
    for name, config in plan.configs().items():
        layout = RunLayout(plan.run_dir(name))
        if lost(config, layout.root):
            continue
        check_run_dir(layout, config)
        if not plan.swept and layout.lock.exists():
            with run_lock(layout):  # refused here, before Hydra writes into another supervisor's folder
                pass


def _check_agreement(plan: Plan, arguments: Arguments, say: Say) -> Plan:
    """Runs of another code or machine are not taken for part of a sweep unless the user says so; of a run alone it is only said."""
    elsewhere = chosen(arguments.engine) == "submitit_slurm"
    mixed = disagreements({name: RunLayout(plan.run_dir(name)) for name in plan.cells}, code_alone=elsewhere)
    for name, text in mixed.items():
        if plan.swept and not arguments.mix:
            fact = f"holds {len(mixed)} run(s) that another code or machine began (first: {name}: {text})"
            raise RunDirectoryError("run_dir", fact, "choose another run_dir, or add --mix to let them stand beside new ones")
        say(f"{name}: begun by another code or machine: {text}")
    return replace(plan, mixed={name: f"mixed: {text}" for name, text in mixed.items()})


def _check_data(configs: Sequence[RunConfig], say: Say) -> None:
    checked: set[DatasetConfig] = set()
    for config in configs:
        size = known_size(config.dataset)
        if config.dataset not in checked:
            prepare_data(config.dataset, say)
            checked.add(config.dataset)
        if size is not None and config.global_batch > size:
            fact = f"{config.global_batch} is larger than the dataset ({size}): an epoch would have 0 steps"
            raise ConfigError("global_batch", fact, f"use at most {size - size % common_multiple(config)}")


def estimate(plan: Plan) -> str:
    """What `scale=paper` costs, roughly: said before it starts."""
    configs = list(plan.configs().values())
    cpu, gpu = (human_seconds(sum(seconds(config, gpu=kind) for config in configs)) for kind in (False, True))
    steps = sum(config.target_steps for config in configs)
    return f"scale=paper: {steps} steps in {len(configs)} run(s), roughly {cpu} on this CPU or {gpu} on a GPU; scale=smoke takes seconds"


def expected_seconds(plan: Plan) -> float:
    """About how long what is left of `plan` takes on this machine: runs that have their metrics.json are done."""
    left = [config for name, config in plan.configs().items() if not RunLayout(plan.run_dir(name)).metrics.exists()]
    gpus = visible_gpus()
    left += [config for where, config in references(plan).items() if not RunLayout(where).metrics.exists()]
    return sum(seconds(config, gpu=gpus > 0 and config.device != "cpu") for config in left)


def references(plan: Plan) -> dict[Path, RunConfig]:
    """By folder, the undisturbed runs that will be trained behind those of `plan`, unless they are found beside them."""
    return to_train(plan.configs(), plan.run_dir)
