"""Which of Hydra's launchers may run the jobs, and which of their settings may be given on the command line."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from importlib import util

from hydra.core.override_parser.types import Override

from ecrl_cli.config.registry import did_you_mean
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import ConfigError, plural, shown

CHOICE, PREFIX = "hydra/launcher", "hydra.launcher."
_PACKAGE = "hydra_plugins.hydra_submitit_launcher"
_ANYWHERE = ("timeout_min", "cpus_per_task", "gpus_per_node", "mem_gb", "name", "stderr_to_stdout")
_SLURM = (
    *("partition", "qos", "comment", "constraint", "exclude", "gres", "account", "nodes", "cpus_per_gpu", "gpus_per_task", "mem_per_gpu"),
    *("mem_per_cpu", "signal_delay_s", "max_num_timeout", "array_parallelism", "additional_parameters"),
)
SETTINGS: dict[str, tuple[str, ...]] = {"submitit_local": _ANYWHERE, "submitit_slurm": (*_ANYWHERE, *_SLURM)}


def is_engine(key: str) -> bool:
    return key == CHOICE or key.startswith(PREFIX)


def split(overrides: Iterable[Override]) -> tuple[tuple[Override, ...], tuple[Override, ...]]:
    """Splits the overrides into those of the runs and those of the launcher, the latter checked: ConfigError for an invalid one."""
    given = tuple(overrides)
    engine = tuple(override for override in given if is_engine(override.key_or_group))
    _check(engine)
    return tuple(override for override in given if override not in engine), engine


def chosen(engine: Iterable[Override]) -> str:
    """The name of the chosen launcher; empty where ECRL runs the jobs itself."""
    return next((str(override.value()) for override in engine if override.key_or_group == CHOICE), "")


def _check(engine: Sequence[Override]) -> None:
    for override in engine:
        if override.is_sweep_override():
            raise ConfigError(override.key_or_group, "cannot be swept over", "one launcher serves the whole sweep")
    name = chosen(engine)
    if name and name not in SETTINGS:
        remedy = did_you_mean(name, SETTINGS) or "leave it out: supervision.launcher=torchrun or zygote says how ranks start"
        raise ConfigError(CHOICE, f"must be one of {', '.join(SETTINGS)}, got {shown(name)}", remedy)
    for override in engine:
        if override.key_or_group != CHOICE:
            _check_setting(override, name)


def _check_setting(override: Override, engine: str) -> None:
    key = override.key_or_group
    if not engine:
        raise ConfigError(key, "is set by ECRL unless an engine is chosen", "add hydra/launcher=submitit_slurm")
    setting, allowed = key.removeprefix(PREFIX), SETTINGS[engine]
    if setting.split(".")[0] not in allowed:
        raise ConfigError(key, f"is no setting of {engine}", did_you_mean(setting, allowed) or f"settings: {', '.join(allowed)}")
    if any(not character.isprintable() for character in str(override.value())):
        raise ConfigError(key, f"has a character that cannot be printed, got {shown(override.value())}", "it becomes a line of the batch script")


def check_engine(name: str) -> None:
    """ConfigError where the launcher's package, or Slurm, is not installed."""
    if name and util.find_spec(_PACKAGE) is None:
        raise ConfigError(CHOICE, f"{name} needs the package hydra-submitit-launcher", "pip install 'ecrl[slurm]'")
    if name == "submitit_slurm" and shutil.which("sbatch") is None:
        raise ConfigError(CHOICE, "submitit_slurm needs Slurm, there is no sbatch on this machine", "try it with hydra/launcher=submitit_local")


def check_shape(name: str, engine: Iterable[Override], configs: Sequence[RunConfig]) -> None:
    """ConfigError where a run needs what its job would not get: more nodes, or a storage folder that exists on one machine only."""
    if name and any(config.storage.folder for config in configs):
        raise ConfigError("storage.folder", f"a run cannot be put elsewhere by {name}", "use storage=disk and a run_dir that lies there")
    needed = max(config.supervision.nodes for config in configs)
    if name == "submitit_local" and needed > 1:
        raise ConfigError(
            "supervision.nodes", f"{plural(needed, 'node needs', 'nodes need')} a Slurm allocation", "use hydra/launcher=submitit_slurm"
        )
    given = next((override.value() for override in engine if override.key_or_group == f"{PREFIX}nodes"), None)
    if isinstance(given, int) and given < needed:
        raise ConfigError(f"{PREFIX}nodes", f"{plural(given, 'node')} per job, supervision.nodes is {needed}", "raise it, or leave it out")


def overrides_for_hydra(engine: Sequence[Override]) -> list[str]:
    """The launcher's overrides for Hydra, with a default job name; empty where none is chosen."""
    texts = [override.input_line or "" for override in engine]
    named = any(override.key_or_group == f"{PREFIX}name" for override in engine)
    return [*texts, *(() if named else (f"{PREFIX}name=ecrl",))] if texts else []
