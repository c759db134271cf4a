"""Which samples a step consumes: a function of (seed, epoch, size), without torch.

The window of a step is `global_batch` sample ids; rank r owns the r-th contiguous shard of it (with
replicas: its replicas' shards). A sample id is the data set's index.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ecrl_cli.config.elastic import share
from ecrl_cli.errors import ConfigError, RecordError, plural

Ids = npt.NDArray[np.int64]


def steps_per_epoch(size: int, global_batch: int) -> int:
    """Whole windows in an epoch; ConfigError if there is none."""
    steps = size // global_batch
    if steps == 0:
        raise ConfigError(
            "global_batch",
            f"{global_batch} is larger than the dataset ({size}): an epoch would have 0 steps",
            f"use at most {size}",
        )
    return steps


def check_divisible(global_batch: int, world_size: int) -> None:
    """ConfigError, with the nearest valid batch sizes, if the ranks cannot own equal shards."""
    if global_batch % world_size == 0:
        return
    below = global_batch // world_size * world_size
    choices = f"{below} or {below + world_size}" if below else str(world_size)
    raise ConfigError(
        "global_batch",
        f"{global_batch} is not divisible by world size {world_size}",
        f"use {choices}",
    )


def epoch_order(seed: int, epoch: int, size: int, global_batch: int = 1) -> Ids:
    """The sample ids of an epoch in order, cut to whole windows of `global_batch`."""
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch])))
    return generator.permutation(size).astype(np.int64, copy=False)[
        : steps_per_epoch(size, global_batch) * global_batch
    ]


def window(order: Ids, step: int, global_batch: int) -> Ids:
    """The ids of step `step` (0-based) of the epoch with this `order`."""
    return order[step * global_batch : (step + 1) * global_batch]


def shard(window: Ids, rank: int, world_size: int, replicas: int = 0) -> Ids:
    """The part of `window` that `rank` owns: see `config.elastic.share`."""
    check_divisible(len(window), replicas or world_size)
    mine = share(len(window), rank, world_size, replicas)
    return window[mine.start : mine.stop]


def ids_hash(ids: Ids) -> str:
    """SHA-256 hex of `ids` as little-endian int64, in order."""
    return hashlib.sha256(ids.astype("<i8", copy=False).tobytes()).hexdigest()


def position(global_step: int, steps_per_epoch: int) -> tuple[int, int]:
    """(epoch, 0-based step in it) of the 1-based `global_step`."""
    return divmod(global_step - 1, steps_per_epoch)


@lru_cache(maxsize=2)
def _cached_order(seed: int, epoch: int, size: int, global_batch: int) -> Ids:
    order = epoch_order(seed, epoch, size, global_batch)
    order.setflags(write=False)
    return order


class ResumableGlobalBatchSampler:
    """A cursor over the global order: its state is (epoch, cursor_step, seed), for any number of
    ranks.

    `cursor_step` is the 0-based step of `epoch` to be consumed next.
    """

    def __init__(self, size: int, global_batch: int, seed: int, replicas: int = 0) -> None:
        self.size, self.global_batch, self.seed, self.replicas = size, global_batch, seed, replicas
        self.steps_per_epoch = steps_per_epoch(size, global_batch)
        self.epoch = 0
        self.cursor_step = 0

    def window(self) -> Ids:
        """The ids of the next step (read-only)."""
        return window(
            _cached_order(self.seed, self.epoch, self.size, self.global_batch),
            self.cursor_step,
            self.global_batch,
        )

    def shard(self, rank: int, world_size: int) -> Ids:
        """The shard of the window that `rank` owns (read-only)."""
        return shard(self.window(), rank, world_size, self.replicas)

    def advance(self) -> None:
        """Moves to the next step, or to the next epoch after the last one."""
        self.cursor_step += 1
        if self.cursor_step == self.steps_per_epoch:
            self.epoch, self.cursor_step = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "cursor_step": self.cursor_step, "seed": self.seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores `state`; ConfigError for another seed, RecordError for a position that this
        order does not have.
        """
        if set(state) != {"epoch", "cursor_step", "seed"}:
            raise RecordError(
                "sampler",
                f"state has {sorted(state)}, not epoch, cursor_step, seed",
                "resume from another checkpoint",
            )
        if state["seed"] != self.seed:
            fact = f"the checkpoint's order has seed {state['seed']}, this run {self.seed}"
            raise ConfigError("seed", fact, f"set seed={state['seed']} or start a new run")
        if state["epoch"] < 0 or not 0 <= state["cursor_step"] < self.steps_per_epoch:
            fact = (
                f"step {state['cursor_step']} of epoch {state['epoch']} does not exist with"
                f" {plural(self.steps_per_epoch, 'step')} per epoch"
            )
            raise RecordError("sampler", fact, "restore the data set or start a new run")
        self.epoch, self.cursor_step = int(state["epoch"]), int(state["cursor_step"])
