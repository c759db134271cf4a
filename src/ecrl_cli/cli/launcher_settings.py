"""Which of Hydra's launchers may run the jobs, and which of their settings may be given on the
command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.types import Override

from ecrl_cli.config.registry import did_you_mean
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import ConfigError, plural, shown
from ecrl_cli.linux.prerequisites import lacking, program

CHOICE, PREFIX = "hydra/launcher", "hydra.launcher."
N_JOBS = f"{PREFIX}n_jobs"  # of ECRL's own: how many runs of a sweep train at the same time
_PACKAGE = "hydra-submitit-launcher"
_ANYWHERE = ("timeout_min", "cpus_per_task", "gpus_per_node", "mem_gb", "name", "stderr_to_stdout")
_SLURM = tuple(
    (
        "partition qos comment constraint exclude gres account nodes cpus_per_gpu gpus_per_task"
        " mem_per_gpu mem_per_cpu signal_delay_s max_num_timeout array_parallelism"
        " additional_parameters"
    ).split()
)
LOCAL, SLURM = "submitit_local", "submitit_slurm"
SETTINGS: dict[str, tuple[str, ...]] = {LOCAL: _ANYWHERE, SLURM: (*_ANYWHERE, *_SLURM)}


def is_engine(key: str) -> bool:
    return key == CHOICE or key.startswith(PREFIX)


@dataclass(frozen=True)
class JobLauncher:
    """The launcher that runs the jobs of a command. `overrides`: those that choose and configure
    it. `name`: of Hydra's launcher; empty where it is ECRL.
    """

    overrides: tuple[Override, ...] = ()

    @property
    def name(self) -> str:
        return str(self._value(CHOICE) or "")

    @property
    def on_slurm(self) -> bool:
        """Whether each job runs where Slurm puts it: it checks that machine itself."""
        return self.name == SLURM

    @property
    def runs_at_once(self) -> int:
        """How many runs of a sweep train at the same time where ECRL runs the jobs itself."""
        return self._value(N_JOBS) or 1

    def check_installed(self) -> None:
        """ConfigError where the launcher's package, or Slurm, is not installed."""
        if self.name and lacking(_PACKAGE):
            raise ConfigError(
                CHOICE, f"{self.name} needs the package {_PACKAGE}", "pip install 'ecrl[slurm]'"
            )
        if self.on_slurm and not program("sbatch"):
            raise ConfigError(
                CHOICE,
                "submitit_slurm needs Slurm, there is no sbatch on this machine",
                "try it with hydra/launcher=submitit_local",
            )

    def check_fits(self, configs: Sequence[RunConfig]) -> None:
        """ConfigError where a run needs what its job would not get: more nodes, or a storage folder
        that exists on one machine only.
        """
        if self.name and any(config.storage.folder for config in configs):
            raise ConfigError(
                "storage.folder",
                f"a run cannot be put elsewhere by {self.name}",
                "use storage=disk and a run_dir that lies there",
            )
        needed = max(config.supervision.nodes for config in configs)
        if self.name == LOCAL and needed > 1:
            raise ConfigError(
                "supervision.nodes",
                f"{plural(needed, 'node needs', 'nodes need')} a Slurm allocation",
                "use hydra/launcher=submitit_slurm",
            )
        given = self._value(f"{PREFIX}nodes")
        if isinstance(given, int) and given < needed:
            raise ConfigError(
                f"{PREFIX}nodes",
                f"{plural(given, 'node')} per job, supervision.nodes is {needed}",
                "raise it, or leave it out",
            )

    def for_hydra(self) -> list[str]:
        """The overrides for Hydra, with a default job name; empty where ECRL runs the jobs
        itself.
        """
        texts = [
            override.input_line or ""
            for override in self.overrides
            if override.key_or_group != N_JOBS
        ]
        return (
            [*texts, *(() if self._value(f"{PREFIX}name") else (f"{PREFIX}name=ecrl",))]
            if texts
            else []
        )

    def _value(self, key: str) -> Any:
        return next(
            (override.value() for override in self.overrides if override.key_or_group == key), None
        )


def split(overrides: Sequence[Override]) -> tuple[tuple[Override, ...], JobLauncher]:
    """Splits the overrides into those of the runs and those of the launcher, the latter checked:
    ConfigError for an invalid one.
    """
    launcher = JobLauncher(
        tuple(override for override in overrides if is_engine(override.key_or_group))
    )
    _check(launcher)
    return tuple(override for override in overrides if override not in launcher.overrides), launcher


def _check(launcher: JobLauncher) -> None:
    for override in launcher.overrides:
        if override.is_sweep_override():
            raise ConfigError(
                override.key_or_group, "cannot be swept over", "one launcher serves the whole sweep"
            )
    name = launcher.name
    if name and name not in SETTINGS:
        remedy = (
            did_you_mean(name, SETTINGS)
            or "leave it out: supervision.launcher=torchrun or zygote says how ranks start"
        )
        raise ConfigError(
            CHOICE, f"must be one of {', '.join(SETTINGS)}, got {shown(name)}", remedy
        )
    for override in launcher.overrides:
        if override.key_or_group != CHOICE:
            _check_setting(override, name)


def _check_setting(override: Override, engine: str) -> None:
    key = override.key_or_group
    if not engine and key == N_JOBS:
        if type(value := override.value()) is not int or value < 1:
            raise ConfigError(
                key,
                f"must be a whole number, at least 1, got {shown(value)}",
                "1 trains one run after the other",
            )
        return
    if not engine:
        raise ConfigError(
            key, "is set by ECRL unless an engine is chosen", "add hydra/launcher=submitit_slurm"
        )
    setting, allowed = key.removeprefix(PREFIX), SETTINGS[engine]
    if setting.split(".")[0] not in allowed:
        raise ConfigError(
            key,
            f"is no setting of {engine}",
            did_you_mean(setting, allowed) or f"settings: {', '.join(allowed)}",
        )
    if any(not character.isprintable() for character in str(override.value())):
        raise ConfigError(
            key,
            f"has a character that cannot be printed, got {shown(override.value())}",
            "it becomes a line of the batch script",
        )
