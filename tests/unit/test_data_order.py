"""The order of samples is a pure function; windows and shards partition it; the cursor resumes
anywhere.
"""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest

from ecrl_cli.data.order import (
    ResumableGlobalBatchSampler,
    check_divisible,
    epoch_order,
    ids_hash,
    position,
    shard,
    steps_per_epoch,
    window,
)
from ecrl_cli.errors import ConfigError, RecordError

SIZE, BATCH, SEED = 103, 12, 7


def test_the_order_of_an_epoch_is_the_contract() -> None:
    # Golden: tools outside the project recompute these; a change here is a change of
    # schema_version.
    assert epoch_order(1337, 3, 10).tolist() == [1, 5, 4, 9, 8, 3, 7, 6, 2, 0]
    assert (
        ids_hash(epoch_order(1337, 0, 1797, 128))
        == "2bd70fc68f28175cb1956df3f4295ce4d54a246420d509f7b91c9f5b280c6a2d"
    )


def test_the_hash_covers_little_endian_int64_in_order() -> None:
    assert (
        ids_hash(np.array([5, 2**40], dtype=np.int64))
        == hashlib.sha256(struct.pack("<qq", 5, 2**40)).hexdigest()
    )
    assert ids_hash(np.array([1, 2], dtype=np.int64)) != ids_hash(np.array([2, 1], dtype=np.int64))


def test_seeds_and_epochs_differ() -> None:
    orders = {epoch_order(seed, epoch, SIZE).tobytes() for seed in (0, 1) for epoch in (0, 1)}
    assert len(orders) == 4


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_windows_and_shards_partition_the_epoch(world_size: int) -> None:
    order = epoch_order(SEED, 0, SIZE, BATCH)
    steps = steps_per_epoch(SIZE, BATCH)
    parts = [
        shard(window(order, s, BATCH), r, world_size)
        for s in range(steps)
        for r in range(world_size)
    ]
    assert {len(part) for part in parts} == {BATCH // world_size}
    assert np.concatenate(parts).tolist() == order.tolist()
    assert len(set(order.tolist())) == steps * BATCH == 96
    assert order.tolist() == epoch_order(SEED, 0, SIZE).tolist()[:96]


@pytest.mark.parametrize(
    ("step", "expected"), [(1, (0, 0)), (8, (0, 7)), (9, (1, 0)), (17, (2, 0))]
)
def test_position_of_a_step(step: int, expected: tuple[int, int]) -> None:
    assert position(step, 8) == expected


def test_a_batch_that_ranks_cannot_share_is_refused_with_the_nearest_ones() -> None:
    with pytest.raises(
        ConfigError, match="global_batch: 33 is not divisible by world size 2; use 32 or 34"
    ):
        check_divisible(33, 2)
    with pytest.raises(ConfigError, match=r"use 4$"):
        check_divisible(3, 4)
    with pytest.raises(ConfigError, match="not divisible"):
        ResumableGlobalBatchSampler(SIZE, 33, SEED).shard(0, 2)


def test_a_batch_above_the_data_set_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"larger than the dataset \(512\): an epoch would have 0 steps"
    ):
        ResumableGlobalBatchSampler(512, 1000, SEED)


def walk(sampler: ResumableGlobalBatchSampler, steps: int) -> list[list[int]]:
    windows = []
    for _ in range(steps):
        windows.append(sampler.window().tolist())
        sampler.advance()
    return windows


def test_a_sampler_resumed_anywhere_goes_on_identically() -> None:
    whole = walk(ResumableGlobalBatchSampler(SIZE, BATCH, SEED), 20)
    for stop in range(20):
        first = ResumableGlobalBatchSampler(SIZE, BATCH, SEED)
        walk(first, stop)
        again = ResumableGlobalBatchSampler(SIZE, BATCH, SEED)
        again.load_state_dict(first.state_dict())
        assert walk(again, 20 - stop) == whole[stop:]


def test_the_state_is_the_place_of_the_next_step() -> None:
    sampler = ResumableGlobalBatchSampler(SIZE, BATCH, SEED)
    assert sampler.state_dict() == {"epoch": 0, "cursor_step": 0, "seed": SEED}
    for step in range(1, 20):
        epoch, cursor_step = position(step, 8)
        assert sampler.state_dict() == {"epoch": epoch, "cursor_step": cursor_step, "seed": SEED}
        assert (
            sampler.window().tolist()
            == window(epoch_order(SEED, epoch, SIZE, BATCH), cursor_step, BATCH).tolist()
        )
        sampler.advance()


def test_a_window_cannot_be_changed_by_its_reader() -> None:
    with pytest.raises(ValueError, match="read-only"):
        ResumableGlobalBatchSampler(SIZE, BATCH, SEED).window()[0] = 0


def test_a_state_of_another_order_is_refused() -> None:
    sampler = ResumableGlobalBatchSampler(SIZE, BATCH, SEED)
    with pytest.raises(ConfigError, match="seed 8, this run 7"):
        sampler.load_state_dict({"epoch": 0, "cursor_step": 0, "seed": 8})
    for state in (
        {"epoch": 0, "cursor_step": 8, "seed": SEED},
        {"epoch": -1, "cursor_step": 0, "seed": SEED},
        {"epoch": 0, "seed": SEED},
    ):
        with pytest.raises(RecordError):
            sampler.load_state_dict(state)
    assert sampler.state_dict() == {"epoch": 0, "cursor_step": 0, "seed": SEED}
