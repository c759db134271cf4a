"""Everything that can be refused is refused here, before anything is written: arguments, grid, machine, folders, data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ecrl_cli.cli.arguments import Arguments
from ecrl_cli.cli.compose import Cell, Grid, compose_grid
from ecrl_cli.config.identity import run_name
from ecrl_cli.config.machine import check_machine
from ecrl_cli.config.schema import DatasetConfig, RunConfig
from ecrl_cli.config.size import human_seconds, seconds
from ecrl_cli.data.preflight import known_size
from ecrl_cli.data.preflight import prepare as prepare_data
from ecrl_cli.errors import ConfigError
from ecrl_cli.records.layout import RunLayout, SweepLayout
from ecrl_cli.runs.directory import claim, claim_sweep
from ecrl_cli.runs.naming import run_directory, sweep_directory
from ecrl_cli.supervision.lock import held

Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What will be run: `folder` of the run or of the sweep, and the cells by run name, in order."""

    folder: Path
    swept: bool
    cells: dict[str, Cell]

    def run_dir(self, name: str) -> Path:
        return self.folder / name if self.swept else self.folder

    def configs(self) -> dict[str, RunConfig]:
        return {name: cell.config for name, cell in self.cells.items()}


def prepare(arguments: Arguments, say: Say) -> Plan:
    """The plan that `arguments` ask for, its data there unless it is only shown. Raises EcrlError with nothing written (a data set may have
    been downloaded)."""
    grid = compose_grid(arguments)
    plan = _plan(grid)
    for config in plan.configs().values():
        check_machine(config)
    _check_folders(plan)
    if arguments.show:  # to look at a configuration needs no data, and must not download any
        return plan
    _check_data([cell.config for cell in grid.cells], say)
    return plan


def _plan(grid: Grid) -> Plan:
    configs = [cell.config for cell in grid.cells]
    names = [run_name(config) for config in configs]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated:
        raise ConfigError("sweep", f"run {repeated} comes up twice", "look for a value that is listed twice")
    folder = sweep_directory(configs, grid.matrix) if grid.swept else run_directory(configs[0])
    return Plan(folder.absolute(), grid.swept, dict(zip(names, grid.cells, strict=True)))


def _check_folders(plan: Plan) -> None:
    if plan.swept:
        claim_sweep(SweepLayout(plan.folder))
    for name, config in plan.configs().items():
        layout = RunLayout(plan.run_dir(name))
        claim(layout, config)
        if not plan.swept and layout.lock.exists():
            with held(layout):  # refused here, before Hydra writes into another supervisor's folder
                pass


def _check_data(configs: Sequence[RunConfig], say: Say) -> None:
    checked: set[DatasetConfig] = set()
    for config in configs:
        size = known_size(config.dataset)
        if config.dataset not in checked:
            prepare_data(config.dataset, say)
            checked.add(config.dataset)
        if size is not None and config.global_batch > size:
            fact = f"{config.global_batch} is larger than the dataset ({size}): an epoch would have 0 steps"
            raise ConfigError("global_batch", fact, f"use at most {size - size % config.world_size}")


def estimate(plan: Plan) -> str:
    """What `scale=paper` costs, roughly: said before it starts."""
    configs = list(plan.configs().values())
    cpu, gpu = (human_seconds(sum(seconds(config, gpu=kind) for config in configs)) for kind in (False, True))
    steps = sum(config.target_steps for config in configs)
    return f"scale=paper: {steps} steps in {len(configs)} run(s), roughly {cpu} on this CPU or {gpu} on a GPU; scale=smoke takes seconds"
