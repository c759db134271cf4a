"""The samples due for each rank at each step, by hash; used to identify logged hashes, never to replace them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ecrl_cli.config.schema import RunConfig
from ecrl_cli.data.order import epoch_order, ids_hash, position, shard, steps_per_epoch, window

AHEAD = 64  # minimum number of steps planned beyond the last one, within the epoch


@dataclass(frozen=True)
class BatchPosition:
    """The shard that `rank` of `world_size` owns of the batch of `step`."""

    step: int
    rank: int
    world_size: int


@dataclass(frozen=True)
class Schedule:
    """`hashes`: by position; `places`: by hash, the positions of shards with that hash, in order of the steps."""

    steps_per_epoch: int
    hashes: dict[BatchPosition, str]
    places: dict[str, tuple[BatchPosition, ...]]

    def epoch_and_cursor(self, step: int) -> tuple[int, int]:
        return position(step, self.steps_per_epoch)


def expected_samples(config: RunConfig, size: int, last_step: int, world_sizes: Iterable[int]) -> Schedule:
    """The schedule up to the end of the epoch of `last_step` (of a very long epoch, only the next steps), for every world size."""
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
