"""`schedule=`: times of failures as shares of the run, converted to `failure.steps`."""

from __future__ import annotations

from dataclasses import replace

from ecrl_cli.config.schema import FailureConfig, RunConfig, ScheduleConfig
from ecrl_cli.errors import ConfigError

DEFAULT_KIND = "exit"  # the failure of the published schedules, if none is named
_WITHOUT_STEPS = ("mtbf", "listed")  # plans with their own times
_SHORT = {"resnet18": "r18", "resnet50": "r50", "resnet152": "r152"}  # the published suites' short names


def steps_at(schedule: ScheduleConfig, target: int, every: int) -> tuple[int, ...]:
    """The steps of `schedule` in a run of `target` steps with a checkpoint every `every` steps; strictly increasing."""
    steps: list[int] = []
    for share in schedule.at:
        boundary = round(share * target / every) * every
        step = boundary + round(schedule.offset * every) if 0 < boundary < target else max(1, round(share * target))
        if schedule.offset and every > 1 and step % every == 0:  # rounded back onto a boundary
            step += 1
        steps.append(max(step, steps[-1] + 1) if steps else step)
    return tuple(steps)


def apply_schedule(config: RunConfig, typed: frozenset[str]) -> RunConfig:
    """`config` with its schedule's steps in `failure.steps`. Typed failures override a suite's schedule.

    A schedule without a failure kind plans the published one (exit). ConfigError if both were typed.
    """
    schedule, failure = config.schedule, config.failure
    chosen = "schedule" in typed or any(key.startswith("schedule.") for key in typed)
    if any(after <= before for before, after in zip(schedule.at, schedule.at[1:], strict=False)):
        raise ConfigError("schedule.at", f"must be strictly increasing, got {list(schedule.at)}", f"use {sorted(set(schedule.at))}")
    if not schedule.at:
        none = chosen and schedule.name == "none" and not typed & {"failure", "failure.kind", "failure.steps"}
        return replace(config, failure=FailureConfig()) if none else config
    if "failure.steps" in typed or failure.kind in _WITHOUT_STEPS:
        if chosen:
            what = "failure.steps is given" if "failure.steps" in typed else f"failure={failure.kind} sets its own steps"
            raise ConfigError("schedule", f"{schedule.name} says when failures are injected, and {what}", "leave one of them out")
        return replace(config, schedule=ScheduleConfig())
    kind = failure.kind
    if kind == "none" and not typed & {"failure", "failure.kind"}:
        kind = DEFAULT_KIND
    if kind == "none":
        return replace(config, schedule=ScheduleConfig())
    steps = steps_at(schedule, config.target_steps, config.checkpoint.every)
    return replace(config, failure=replace(failure, kind=kind, steps=steps))


def reapply_schedule(config: RunConfig, typed: frozenset[str]) -> RunConfig:
    """Recomputes the schedule's steps after a scale has shortened the run, whichever of its keys the user typed."""
    if not config.schedule.at or "failure.steps" in typed:
        return config
    steps = steps_at(config.schedule, config.target_steps, config.checkpoint.every)
    return replace(config, failure=replace(config.failure, steps=steps))


def name_the_suite(config: RunConfig, typed: frozenset[str]) -> RunConfig:
    """Names the suite of a run that was put together from data set, model and schedule: `cifar10-r50-late`."""
    if config.schedule.name == "none" or "suite_name" in typed or (config.suite_name and "schedule" not in typed):
        return config
    model = _SHORT.get(config.model.name, config.model.name)
    return replace(config, suite_name=f"{config.dataset.name}-{model}-{config.schedule.name}")
