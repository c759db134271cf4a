"""The undisturbed run that struck runs are held against: trained once, beside them, for all that must end in the same state.

It lies in `references/` of the folder that the runs lie in, where `ecrl verify` looks and `ecrl report` does not: it is no arm of a comparison. It
saves one checkpoint, at the target. Stopped before, it begins anew when it is started again, because a run that resumed would rest on the very code
that it is to vouch for (docs/decisions/references.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from ecrl_cli.config.estimates import seconds
from ecrl_cli.config.identity import reference_id, run_name
from ecrl_cli.config.machine import visible_gpus
from ecrl_cli.config.recoveries import recovery_of
from ecrl_cli.config.schema import CheckpointConfig, FailureConfig, RecoveryConfig, RunConfig, ScheduleConfig, StorageConfig, VariantConfig
from ecrl_cli.failures.plan import plan
from ecrl_cli.records.layout import REFERENCES


def reference_of(config: RunConfig) -> RunConfig:
    """The same training with nothing planned against it, under stock DDP and restarts from the first step. Changes of the world size stay."""
    checkpoint = replace(config.checkpoint, strategy="blocking", every=config.target_steps, keep=CheckpointConfig.keep, final=True)
    plain = CheckpointConfig()
    checkpoint = replace(checkpoint, memory_every=plain.memory_every, layout=plain.layout, format=plain.format, on_error=plain.on_error)
    return replace(
        config,
        suite_name="",
        run_dir="",
        reference="none",
        checkpoint=checkpoint,
        storage=StorageConfig(),
        failure=FailureConfig(),
        schedule=ScheduleConfig(),
        recovery=RecoveryConfig(),
        supervision=replace(config.supervision, spares=0, grace_s=0.0),
        variant=VariantConfig("ref", failures=False, resizes=config.variant.resizes),
    )


def wanted(config: RunConfig) -> bool:
    """Whether `ecrl train` trains a reference for this run, where none is there. auto: for a run whose plan strikes it and whose recovery claims the
    trajectory, where the reference takes no longer than the run itself."""
    if config.reference != "auto":
        return config.reference == "always"
    if not plan(config) or not recovery_of(config).exact:
        return False
    return estimate_s(reference_of(config)) <= estimate_s(config)


def estimate_s(config: RunConfig) -> float:
    """About how long a run takes on this machine."""
    return seconds(config, gpu=visible_gpus() > 0 and config.device != "cpu")


def to_train(configs: Mapping[str, RunConfig], folder_of: Callable[[str], Path]) -> dict[Path, RunConfig]:
    """By folder, the references that a command will want for the runs `configs`, as far as their configurations tell: none where one of the runs
    is to go through undisturbed itself."""
    undisturbed = {reference_id(config) for config in configs.values() if not plan(config)}
    struck = {name: config for name, config in configs.items() if wanted(config) and reference_id(config) not in undisturbed}
    return {place(folder_of(name), config): reference_of(config) for name, config in struck.items()}


def place(run_dir: Path, config: RunConfig) -> Path:
    """Where the reference of a run in `run_dir` lies."""
    return Path(os.path.normpath(run_dir.absolute())).parent / REFERENCES / run_name(reference_of(config))
