"""The world size by step and each rank's share of a window: defined once, for supervisor, failure
plan, ranks and verify.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import ConfigError, plural

KEY = "elastic.schedule"
Say = Callable[[str], None]


def normalize_schedule(config: RunConfig, typed: frozenset[str]) -> RunConfig:
    """`config` with its schedule normalized: `world_size` is the size of the first step, the
    schedule holds only the changes, in order.

    Equivalent spellings give the same run. ConfigError for an impossible step or size, and for a
    typed `world_size` that contradicts the schedule.
    """
    config = _as_typed(config, typed)
    schedule = config.elastic.schedule
    for step, size in schedule.items():
        _check_entry(step, size, config.target_steps)
    first = schedule.get(0, config.world_size)
    if first != config.world_size and "world_size" in typed:
        raise ConfigError(
            "world_size",
            f"is {config.world_size}, {KEY} begins with {first}",
            "leave one of them out",
        )
    changes = {step: size for step, size in sorted(schedule.items()) if step}
    return _plain(
        replace(config, world_size=first, elastic=replace(config.elastic, schedule=changes))
    )


def _plain(config: RunConfig) -> RunConfig:
    """Drops schedule entries that do not change the size."""
    plain = {
        step: size
        for step, size in config.elastic.schedule.items()
        if size != world_size_after(config, step - 1)
    }
    return replace(config, elastic=replace(config.elastic, schedule=plain))


def _as_typed(config: RunConfig, typed: frozenset[str]) -> RunConfig:
    """Keeps only the typed entries of the schedule, where it was typed: Hydra would merge them with
    the suite's.
    """
    steps = {key.removeprefix(f"{KEY}.") for key in typed if key.startswith(f"{KEY}.")}
    if not steps and KEY not in typed:
        return config
    schedule = {step: size for step, size in config.elastic.schedule.items() if str(step) in steps}
    return replace(config, elastic=replace(config.elastic, schedule=schedule))


def world_size_after(config: RunConfig, step: int) -> int:
    """The world size after `step` (0: from the beginning)."""
    since = [begin for begin in config.elastic.schedule if begin <= step]
    return config.elastic.schedule[max(since)] if since else config.world_size


def next_change(config: RunConfig, step: int) -> int | None:
    """The first scheduled step after `step` at which the world size changes; None if it does
    not.
    """
    coming = (begin for begin in sorted(config.elastic.schedule) if begin > step)
    return next(
        (
            begin
            for begin in coming
            if world_size_after(config, begin) != world_size_after(config, begin - 1)
        ),
        None,
    )


def ranks_at(config: RunConfig, step: int) -> int:
    """How many ranks are certain to exist at the boundary after `step`: the smaller of the sizes
    before and after it.
    """
    return min(world_size_after(config, step - 1), world_size_after(config, step))


def sizes(config: RunConfig) -> tuple[int, ...]:
    """Every world size of the run, the first one first."""
    return tuple(
        dict.fromkeys(
            (
                world_size_after(config, 0),
                *(size for _, size in sorted(config.elastic.schedule.items())),
            )
        )
    )


def common_multiple(config: RunConfig) -> int:
    """The number that must divide the global batch, so that all ranks own equal shards at every
    size (with replicas: the number of replicas).
    """
    return config.elastic.replicas or math.lcm(*sizes(config))


def fits(config: RunConfig, size: int) -> bool:
    """Whether `size` ranks can share a window: equally, or with at least one replica each."""
    return (
        size <= config.elastic.replicas
        if config.elastic.replicas
        else config.global_batch % size == 0
    )


def misfit(config: RunConfig) -> str:
    """Why a size does not fit, as the end of a sentence."""
    replicas = config.elastic.replicas
    return (
        f"cannot share {plural(replicas, 'replica')}"
        if replicas
        else f"do not divide global_batch {config.global_batch}"
    )


def next_fitting(config: RunConfig, size: int) -> int:
    """The largest world size up to `size` that fits."""
    return next(
        fewer for fewer in range(min(size, config.global_batch), 0, -1) if fits(config, fewer)
    )


def owned(replicas: int, rank: int, world_size: int) -> range:
    """The replicas that `rank` computes: contiguous, and at least one unless there are more ranks
    than replicas.
    """
    return range(rank * replicas // world_size, (rank + 1) * replicas // world_size)


def share(window: int, rank: int, world_size: int, replicas: int = 0) -> range:
    """The positions in a window of `window` samples that `rank` owns: equally many per rank, or
    with `replicas` those of its replicas.
    """
    units = replicas or world_size
    mine = owned(units, rank, world_size)
    return range(mine.start * window // units, mine.stop * window // units)


def round_down_world_sizes(config: RunConfig, say: Say) -> RunConfig:
    """If `elastic.on_indivisible` is `lower`: replaces every size that does not fit by the next
    lower one that does, and reports it.
    """
    if config.elastic.on_indivisible != "lower":
        return config

    def fitting(key: str, size: int) -> int:
        lower = next_fitting(config, size)
        if lower < size:
            say(f"{key}: {plural(lower, 'rank')} instead of {size}, which {misfit(config)}")
        return lower

    schedule = {
        step: fitting(f"{KEY}.{step}", size) for step, size in config.elastic.schedule.items()
    }
    return _plain(
        replace(
            config,
            world_size=fitting("world_size", config.world_size),
            elastic=replace(config.elastic, schedule=schedule),
        )
    )


def _check_entry(step: int, size: int, target: int) -> None:
    if size < 1:
        raise ConfigError(
            KEY,
            f"a world size must be >= 1, got {size} from step {step} on",
            "a run has at least one rank",
        )
    if step < 0:
        raise ConfigError(KEY, f"a step must be >= 0, got {step}", "0 is the beginning")
    if step >= target:
        raise ConfigError(
            KEY,
            f"step {step} is not below target_steps {target}: no step would be left",
            "lower it or raise target_steps",
        )


def may_shrink(config: RunConfig) -> bool:
    """Whether the run continues with fewer ranks when it loses nodes."""
    return config.supervision.nodes > 1 and config.supervision.on_node_loss == "shrink"


def place_ranks(config: RunConfig, nodes: int) -> tuple[int, int]:
    """(world size, nodes in use): as many of the wanted ranks as fit on `nodes` >= 1 nodes, equally
    many per node, none above its share, and dividing the batch as required. Fewer ranks than wanted
    only if nodes are missing.
    """
    wanted, each = (
        min(config.supervision.nodes, nodes),
        config.world_size // config.supervision.nodes,
    )
    fitting = [
        (count * ranks, count)
        for count in range(1, wanted + 1)
        for ranks in range(1, each + 1)
        if fits(config, count * ranks)
    ]
    return max(fitting)
