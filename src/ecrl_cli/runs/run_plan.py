"""Everything about a run worked out once before it starts: identity, directory, planned failures,
estimated duration, reference.

A reference is an undisturbed run of the same training that runs with failures are compared with.
One is trained for all runs that must end in the same state, in `references/` beside them, where
`ecrl verify` looks and `ecrl report` does not: it is no arm of a comparison. It saves one
checkpoint, at the target. An interrupted reference starts from scratch, because a resumed one would
rest on the code it is to check (docs/decisions/references.md).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ecrl_cli.config.estimates import seconds
from ecrl_cli.config.identity import BEFORE_DIGEST, reference_id, run_id, run_name
from ecrl_cli.config.legs import constant_rate
from ecrl_cli.config.machine import visible_gpus
from ecrl_cli.config.recoveries import recovery_of
from ecrl_cli.config.schema import (
    CheckpointConfig,
    FailureConfig,
    RecoveryConfig,
    RunConfig,
    ScheduleConfig,
    StorageConfig,
    TrackerConfig,
    VariantConfig,
)
from ecrl_cli.errors import ConfigError
from ecrl_cli.failures.plan import plan
from ecrl_cli.history.load import RunRecords
from ecrl_cli.history.rest_start import RestStart
from ecrl_cli.records.events import PlannedFailure
from ecrl_cli.records.layout import REFERENCES, RunLayout
from ecrl_cli.records.state_digests import digests_configured
from ecrl_cli.runs.continuation import as_recorded

OUTPUTS = Path("outputs")


@dataclass(frozen=True)
class RunPlan:
    """`failures`: in order, as in failures.json. `estimate_s`: estimated seconds of the run on this
    machine.

    `reference`: the undisturbed run to train beside it if none exists; None if it needs none.
    `checked`: the command has already checked the run's directory and data. `asked_digest`: the
    checkpoint.digest that was asked for, if the run began with another. `runs_at_once`: how many
    runs of the sweep may train at the same time, this one included. `initial`: the checkpoint of
    another run that this one begins with a copy of.
    """

    config: RunConfig
    layout: RunLayout
    run_id: str
    reference_id: str
    failures: tuple[PlannedFailure, ...]
    estimate_s: float
    reference: RunPlan | None = None
    checked: bool = False
    asked_digest: str = ""
    runs_at_once: int = 1
    initial: Path | None = None


def plan_run(config: RunConfig, run_dir: Path, identity: str = "") -> RunPlan:
    """The plan of a run in `run_dir`. `identity`: its run id, if already known. ConfigError if a
    failure cannot be injected into this run.
    """
    asked, config = config.checkpoint.digest, as_recorded(config, RunLayout(run_dir))
    asked = "" if asked == config.checkpoint.digest else asked
    failures = plan(config)
    identity = "" if config.continued_at else identity  # of the run that it was
    estimate_s = seconds(config, gpus=visible_gpus() if config.device != "cpu" else 0)
    alone = RunPlan(
        config,
        RunLayout(run_dir),
        identity or run_id(config),
        reference_id(config),
        failures,
        estimate_s,
        asked_digest=asked,
    )
    return replace(alone, reference=_reference(alone))


def _reference(run_plan: RunPlan) -> RunPlan | None:
    """The reference's plan, or None if none is due.

    reference=auto: due if failures are planned, the recovery claims the exact trajectory, and the
    reference takes no longer than the run itself.
    """
    config = run_plan.config
    if config.continued_at and not constant_rate(config.optimizer):
        return None  # no run planned for all the steps does the same
    due = config.reference == "always" or (
        config.reference == "auto" and bool(run_plan.failures) and recovery_of(config).exact
    )
    if not due:
        return None
    reference = plan_reference(config, run_plan.layout.root)
    return (
        reference
        if config.reference == "always" or reference.estimate_s <= run_plan.estimate_s
        else None
    )


def plan_reference(config: RunConfig, run_dir: Path) -> RunPlan:
    """The plan of the reference of the run with `config` in `run_dir`. ConfigError where no run can
    be one.
    """
    if config.continued_at and not constant_rate(config.optimizer):
        fact = (
            f"the run went on after step {config.continued_at[-1]} with a learning rate that falls"
            " anew: no run of so many steps does the same"
        )
        raise ConfigError(
            "--with-reference", fact, "after that step nothing can be held against it"
        )
    return _plan_beside(reference_of(config), run_dir)


def plan_rest(records: RunRecords, start: RestStart) -> RunPlan:
    """The plan of the undisturbed run that begins with the checkpoint `start` of a run and does the
    rest of it, beside that run.
    """
    root, stored = records.layout.root, records.stored
    digests = "true" if digests_configured(stored.config) else stored.config.state_digests
    config = replace(
        reference_of(stored.config),
        state_digests=digests,  # whichever steps the run logged them after
        world_size=start.world_size,
        begins_from=start.begins_from(stored.run_id),
        variant=VariantConfig("rest", failures=False, resizes=False),
    )
    return replace(_plan_beside(config, root), initial=records.layout.checkpoints / start.name)


def _plan_beside(undisturbed: RunConfig, run_dir: Path) -> RunPlan:
    """The plan of `undisturbed` in the references folder beside `run_dir`."""
    identity = run_id(undisturbed)
    # a run with another checkpoint.digest has the same run id and another reference
    name = run_name(undisturbed, identity) + (
        ""
        if undisturbed.checkpoint.digest == BEFORE_DIGEST
        else f"-{undisturbed.checkpoint.digest}"
    )
    return plan_run(
        undisturbed, Path(os.path.normpath(run_dir.absolute())).parent / REFERENCES / name, identity
    )


def reference_of(config: RunConfig) -> RunConfig:
    """The same training without failures, under stock DDP, with restarts from step 0. Changes of
    the world size are kept.
    """
    checkpoint = replace(
        config.checkpoint,
        strategy="blocking",
        every=config.target_steps,
        keep=CheckpointConfig.keep,
        final=True,
    )
    checkpoint, plain = replace(checkpoint, capture=CheckpointConfig.capture), CheckpointConfig()
    checkpoint = replace(
        checkpoint,
        memory_every=plain.memory_every,
        layout=plain.layout,
        format=plain.format,
        on_error=plain.on_error,
    )
    return replace(
        config,
        suite_name="",
        run_dir="",
        continued_at=(),
        reference="none",
        tracker=TrackerConfig(),
        checkpoint=checkpoint,
        storage=StorageConfig(),
        failure=FailureConfig(),
        schedule=ScheduleConfig(),
        recovery=RecoveryConfig(),
        supervision=replace(config.supervision, spares=0, grace_s=0.0),
        variant=VariantConfig("ref", failures=False, resizes=config.variant.resizes),
    )


def references(plans: Iterable[RunPlan]) -> list[RunPlan]:
    """The distinct references that a command needs for its runs; none for a run whose undisturbed
    counterpart is itself among `plans`.
    """
    runs = list(plans)
    undisturbed = {run.reference_id for run in runs if not run.failures}
    return list(
        {
            run.reference.layout.root: run.reference
            for run in runs
            if run.reference and run.reference_id not in undisturbed
        }.values()
    )


def command_folder(
    configs: Sequence[RunConfig], identities: Sequence[str], *, swept: bool, matrix: str
) -> Path:
    """The absolute folder of a command's runs: `run_dir`, or a folder in outputs/ named by content,
    so that the same command finds its earlier runs.

    A single run: its run name. A sweep: `matrix`, or <suite>-<hash of the run ids>.
    """
    if configs[0].run_dir:
        return Path(configs[0].run_dir).expanduser().absolute()
    if not swept:
        return (OUTPUTS / run_name(configs[0], identities[0])).absolute()
    suites = {config.suite_name for config in configs}
    content = hashlib.sha256("\n".join(sorted(identities)).encode()).hexdigest()[:8]
    return (
        OUTPUTS
        / (matrix or f"{(suites.pop() or 'sweep') if len(suites) == 1 else 'sweep'}-{content}")
    ).absolute()
