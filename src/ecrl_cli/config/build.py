"""Builds one checked RunConfig from what Hydra composed: converts every field, applies schedule,
scale and variant, checks the whole.

`schedule=` has the times of failures as shares of the run, converted to `failure.steps`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ecrl_cli.config.checks import check
from ecrl_cli.config.convert import convert
from ecrl_cli.config.elastic import Say, normalize_schedule, round_down_world_sizes
from ecrl_cli.config.launchers import LAUNCHERS
from ecrl_cli.config.omegaconf_bridge import plain
from ecrl_cli.config.plan_kinds import plan_kind
from ecrl_cli.config.scale import apply_scale
from ecrl_cli.config.schema import FailureConfig, RunConfig, ScheduleConfig
from ecrl_cli.errors import ConfigError, shown


def build(
    composed: Mapping[str, Any], typed: frozenset[str] = frozenset(), say: Say = lambda line: None
) -> RunConfig:
    """The run that `composed` describes (a DictConfig or plain mapping; a `hydra` node is ignored).

    `typed`: the keys (dotted) and groups that the user typed; a scale does not change them. `say`
    receives a message for each adjustment. Raises ConfigError.
    """
    config = convert(RunConfig, plain(composed))
    if config.continued_at:
        raise ConfigError(
            "continued_at",
            "is recorded by ECRL when a finished run is given a higher target",
            "leave it out, and raise target_steps",
        )
    if config.begins_from:
        raise ConfigError(
            "begins_from",
            "is recorded by ECRL in the reference of the rest of a run",
            "leave it out; `ecrl verify --with-reference RUN` trains such a reference",
        )
    if (
        "model.name" in typed
        and config.model.name.startswith("resnet")
        and "model.width" not in typed
    ):
        raise ConfigError(
            "model.name", "names a ResNet without its width", f"write model={config.model.name}"
        )
    # Which packages are installed is looked up only for a name that is not built in: it takes
    # several times as long as all else here.
    if config.scale.launcher not in ("", *LAUNCHERS.builtin) and config.scale.launcher not in (
        known := LAUNCHERS.names()
    ):
        raise ConfigError(
            "scale.launcher",
            f"must be one of {', '.join(known)}, got {shown(config.scale.launcher)}",
        )
    # The scale first: every arm of a comparison must be scaled alike, from the suite's plan.
    config = name_the_suite(apply_schedule(config, typed), typed)
    scaled = reapply_schedule(
        round_down_world_sizes(apply_scale(normalize_schedule(config, typed), typed), say), typed
    )
    if scaled.supervision.launcher != config.supervision.launcher:
        say(
            f"scale={config.scale.name}: ranks are forked by {scaled.supervision.launcher}; add"
            " supervision=torchrun for the default launcher"
        )
    config = _apply_variant(
        replace(scaled, failure=prune_unused_keys(scaled.failure, typed)), typed
    )
    check(config)
    return config


def _apply_variant(config: RunConfig, typed: frozenset[str]) -> RunConfig:
    """Drops the failure plan for a variant without failures, or where `failure=none` was typed;
    drops the schedule for one without resizes.
    """
    nothing = plan_kind(config.failure.kind).plans_none
    if (
        nothing
        and typed & {"failure", "failure.kind"}
        and not typed & {"failure.steps", "failure.mtbf_steps"}
    ) or not config.variant.failures:
        config = replace(config, failure=FailureConfig())
    return (
        config
        if config.variant.resizes
        else replace(config, elastic=replace(config.elastic, schedule={}))
    )


DEFAULT_KIND = "exit"  # the failure of the published schedules, if none is named
# the published suites' short names
_SHORT = {"resnet18": "r18", "resnet50": "r50", "resnet152": "r152"}


def steps_at(schedule: ScheduleConfig, target: int, every: int) -> tuple[int, ...]:
    """The steps of `schedule` in a run of `target` steps with a checkpoint every `every` steps;
    strictly increasing.
    """
    steps: list[int] = []
    for share in schedule.at:
        boundary = round(share * target / every) * every
        step = (
            boundary + round(schedule.offset * every)
            if 0 < boundary < target
            else max(1, round(share * target))
        )
        if schedule.offset and every > 1 and step % every == 0:  # rounded back onto a boundary
            step += 1
        steps.append(max(step, steps[-1] + 1) if steps else step)
    return tuple(steps)


def apply_schedule(config: RunConfig, typed: frozenset[str]) -> RunConfig:
    """`config` with its schedule's steps in `failure.steps`. Typed failures override a suite's
    schedule.

    A schedule without a failure kind plans the published one (exit). ConfigError if both were
    typed.
    """
    schedule, failure = config.schedule, config.failure
    chosen = "schedule" in typed or any(key.startswith("schedule.") for key in typed)
    if any(after <= before for before, after in zip(schedule.at, schedule.at[1:], strict=False)):
        raise ConfigError(
            "schedule.at",
            f"must be strictly increasing, got {list(schedule.at)}",
            f"use {sorted(set(schedule.at))}",
        )
    if not schedule.at:
        none = (
            chosen
            and schedule.name == "none"
            and not typed & {"failure", "failure.kind", "failure.steps"}
        )
        return replace(config, failure=FailureConfig()) if none else config
    if "failure.steps" in typed or plan_kind(failure.kind).sets_times:
        if chosen:
            what = (
                "failure.steps is given"
                if "failure.steps" in typed
                else f"failure={failure.kind} sets its own steps"
            )
            raise ConfigError(
                "schedule",
                f"{schedule.name} says when failures are injected, and {what}",
                "leave one of them out",
            )
        return replace(config, schedule=ScheduleConfig())
    if plan_kind(failure.kind).plans_none:
        if typed & {"failure", "failure.kind"}:
            return replace(config, schedule=ScheduleConfig())
        failure = replace(failure, kind=DEFAULT_KIND)
    steps = steps_at(schedule, config.target_steps, config.checkpoint.every)
    return replace(config, failure=replace(failure, steps=steps))


def reapply_schedule(config: RunConfig, typed: frozenset[str]) -> RunConfig:
    """Recomputes the schedule's steps after a scale has shortened the run, whichever of its keys
    the user typed.
    """
    if not config.schedule.at or "failure.steps" in typed:
        return config
    steps = steps_at(config.schedule, config.target_steps, config.checkpoint.every)
    return replace(config, failure=replace(config.failure, steps=steps))


def name_the_suite(config: RunConfig, typed: frozenset[str]) -> RunConfig:
    """Names the suite of a run that was put together from data set, model and schedule:
    `cifar10-r50-late`.
    """
    if (
        config.schedule.name == "none"
        or "suite_name" in typed
        or (config.suite_name and "schedule" not in typed)
    ):
        return config
    model = _SHORT.get(config.model.name, config.model.name)
    return replace(config, suite_name=f"{config.dataset.name}-{model}-{config.schedule.name}")


def prune_unused_keys(failure: FailureConfig, typed: frozenset[str]) -> FailureConfig:
    """`failure` without the keys that a typed kind does not use: those belong to the plan of the
    suite or matrix that it replaces.
    """
    kind = plan_kind(failure.kind)
    if kind.plans_none or not typed & {"failure", "failure.kind"}:
        return failure
    default, given = FailureConfig(), {key.removeprefix("failure.") for key in typed}
    changes: dict[str, Any] = {
        name: getattr(default, name) for name in kind.unused_keys(failure) - given
    }
    return replace(failure, **changes)
