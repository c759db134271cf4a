"""What each rank was to consume at each step, by hash: to name what a logged hash stands for, never to stand in for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ecrl_cli.config.schema import RunConfig
from ecrl_cli.data.order import epoch_order, ids_hash, position, shard, steps_per_epoch, window

AHEAD = 64  # steps behind the last one that are planned at least, where the epoch has so many


@dataclass(frozen=True)
class BatchPosition:
    """A shard of the plan: what `rank` of `world_size` owns of the window of `step`."""

    step: int
    rank: int
    world_size: int


@dataclass(frozen=True)
class Schedule:
    """`hashes`: by place; `places`: the places whose shard has that hash, in order of the steps."""

    steps_per_epoch: int
    hashes: dict[BatchPosition, str]
    places: dict[str, tuple[BatchPosition, ...]]

    def epoch_and_cursor(self, step: int) -> tuple[int, int]:
        return position(step, self.steps_per_epoch)


def expected_samples(config: RunConfig, size: int, last_step: int, world_sizes: Iterable[int]) -> Schedule:
    """The plan up to the end of the epoch of `last_step` (of a very long one, the next steps), for every world size."""
    per_epoch = steps_per_epoch(size, config.global_batch)
    sizes = sorted(set(world_sizes))
    hashes: dict[BatchPosition, str] = {}
    beyond = 2 * last_step + AHEAD
    for epoch in range(position(max(last_step, 1), per_epoch)[0] + 1):
        order = epoch_order(config.seed, epoch, size, config.global_batch)
        for cursor in range(min(per_epoch, beyond - epoch * per_epoch)):
            ids = window(order, cursor, config.global_batch)
            for world_size in sizes:
                for rank in range(world_size):
                    part = shard(ids, rank, world_size, config.elastic.replicas)
                    hashes[BatchPosition(epoch * per_epoch + cursor + 1, rank, world_size)] = ids_hash(part)
    places: dict[str, tuple[BatchPosition, ...]] = {}
    for place, digest in hashes.items():
        places[digest] = (*places.get(digest, ()), place)
    return Schedule(per_epoch, hashes, places)
