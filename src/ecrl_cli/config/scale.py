"""`scale=`: makes a run smaller. Only keys that the user did not type change; failures and
world-size changes stay on or off a checkpoint boundary, and a schedule keeps its sizes.
"""

from __future__ import annotations

from dataclasses import replace

from ecrl_cli.config.elastic import KEY, common_multiple
from ecrl_cli.config.fault_spec import parse
from ecrl_cli.config.schema import RunConfig

# Keys that a matrix sweeps over at the paper's scale: its values are scaled too, typed ones are
# not.
SCALED_IN_A_MATRIX = frozenset({"failure.mtbf_steps"})


def apply_scale(config: RunConfig, typed: frozenset[str]) -> RunConfig:
    """`config` with its scale's factors applied to every key that is not in `typed`."""
    config = _scale_ranks(config, typed)
    config = _scale_batch(config, typed)
    config = _scale_width(config, typed)
    return _scale_steps(config, typed)


def _scale_ranks(config: RunConfig, typed: frozenset[str]) -> RunConfig:
    scale, failure = config.scale, config.failure
    # with a schedule, 2 -> 1 would no longer be a change
    if scale.world_size and "world_size" not in typed and not config.elastic.schedule:
        config = replace(config, world_size=scale.world_size)
    if failure.rank >= config.world_size and not typed & {"failure.rank", "world_size"}:
        config = replace(config, failure=replace(failure, rank=config.world_size - 1))
    if scale.launcher and not typed & {"supervision", "supervision.launcher"}:
        config = replace(config, supervision=replace(config.supervision, launcher=scale.launcher))
    return config


def _scale_batch(config: RunConfig, typed: frozenset[str]) -> RunConfig:
    if config.scale.batch == 1.0 or "global_batch" in typed:
        return config
    ranks = common_multiple(config)
    least = 2 if config.elastic.replicas else 1  # BatchNorm needs at least two samples
    local = max(least, round(config.global_batch * config.scale.batch / ranks))
    return replace(config, global_batch=local * ranks)


def _scale_width(config: RunConfig, typed: frozenset[str]) -> RunConfig:
    if config.scale.width == 1.0 or "model.width" in typed:
        return config
    eighths = max(1, round(config.model.width * config.scale.width / 8))
    return replace(config, model=replace(config.model, width=min(config.model.width, 8 * eighths)))


def _scale_steps(config: RunConfig, typed: frozenset[str]) -> RunConfig:
    factor = config.scale.steps
    if factor == 1.0:
        return config
    every = config.checkpoint.every
    if "checkpoint.every" not in typed:
        # with 1, every step would be on a boundary
        every = min(every, max(config.scale.min_every, 2, round(every * factor)))
    target, steps, schedule = config.target_steps, config.failure.steps, config.elastic.schedule
    listed = [parse(text) for text in config.failure.entries]
    failing = tuple(sorted({entry.step for entry in listed if entry.step}))
    if "target_steps" not in typed:
        room = 2 * every * (len(steps) + len(failing) + len(schedule) + 1)
        target = min(target, max(round(target * factor), room))
        factor = target / config.target_steps
    mtbf = config.failure.mtbf_steps
    if "failure.mtbf_steps" not in typed and mtbf:
        mtbf = min(mtbf, max(1.0, mtbf * factor))
    if "failure.steps" not in typed:
        steps = _scaled(steps, factor, config.checkpoint.every, every)
    if "failure.entries" not in typed:
        moved = _scaled(failing, factor, config.checkpoint.every, every)
        listed = [
            replace(entry, step=dict(zip(failing, moved, strict=True)).get(entry.step, 0))
            for entry in listed
        ]
        failing = moved
    if not any(key.startswith(KEY) for key in typed):
        changes = _scaled(tuple(schedule), factor, config.checkpoint.every, every)
        schedule = dict(zip(changes, schedule.values(), strict=True))
    if "target_steps" not in typed:
        target = min(
            config.target_steps,
            max([target, *(step + 1 for step in (*steps, *failing, *schedule))]),
        )
    return replace(
        config,
        target_steps=target,
        checkpoint=replace(config.checkpoint, every=every),
        failure=replace(
            config.failure, steps=steps, mtbf_steps=mtbf, entries=tuple(map(str, listed))
        ),
        elastic=replace(config.elastic, schedule=schedule),
    )


def _scaled(steps: tuple[int, ...], factor: float, every: int, new_every: int) -> tuple[int, ...]:
    """Each step scaled by `factor` to the nearest one of its kind (on or off a boundary), strictly
    increasing.
    """
    moved: list[int] = []
    for step in steps:
        on_boundary = step % every == 0
        candidate = max(round(step * factor), moved[-1] + 1 if moved else 1)
        if on_boundary:
            candidate = max(new_every, round(candidate / new_every) * new_every)
            candidate += new_every if moved and candidate <= moved[-1] else 0
        elif candidate % new_every == 0:
            candidate += 1
        moved.append(candidate)
    return tuple(moved)
