"""What a sample looks like depends on (seed, epoch, sample_id) and on nothing else."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest
import torch
from blake3 import blake3

from ecrl_cli.config.schema import DatasetConfig
from ecrl_cli.data.datasets import build_dataset
from ecrl_cli.data.loading import (
    BatchLoader,
    augment,
    describe,
    draws,
    inputs_hash,
    integers,
    philox4x32,
)
from ecrl_cli.data.order import ResumableGlobalBatchSampler
from ecrl_cli.data.sample_set import ArraySet, DatasetInfo, SampleSet
from ecrl_cli.records.events import DatasetRecord

TRAITS = DatasetInfo(
    "pictures", classes=5, shape=(3, 32, 32), mean=(0.5, 0.4, 0.3), std=(0.25, 0.2, 0.1)
)


@pytest.fixture(scope="module")
def pictures() -> SampleSet:
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (64, 3, 32, 32), dtype=np.uint8)
    return ArraySet(TRAITS, pixels, np.arange(64, dtype=np.int64) % 5)


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


# The known-answer vectors that Random123 publishes for philox4x32-10: counter, key, result.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_gives_the_published_answers(
    counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    assert philox4x32(np.array([counter], dtype=np.uint64), key)[0].tolist() == list(expected)


def test_draws_cover_the_whole_range_and_every_key() -> None:
    words = draws(2**63 - 1, 2**20, np.arange(4000))
    assert set(integers(words[:, 0], 9).tolist()) == set(range(9))
    assert len(np.unique(words[:, 1])) > 3990
    assert not np.array_equal(draws(1, 0, ids(3)), draws(1 + 2**32, 0, ids(3)))
    assert not np.array_equal(draws(1, 0, ids(3)), draws(1, 0, ids(3 + 2**32)))


def test_a_sample_looks_the_same_in_any_batch(pictures: SampleSet) -> None:
    loader = BatchLoader(pictures, seed=3, augment=True)
    whole = loader.batch(2, np.arange(64))
    mixed = loader.batch(2, ids(9, 41, 9, 0))
    assert torch.equal(mixed.x, whole.x[[9, 41, 9, 0]])
    assert torch.equal(mixed.y, whole.y[[9, 41, 9, 0]])


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_the_shards_of_any_world_size_make_the_same_window(
    pictures: SampleSet, world_size: int
) -> None:
    sampler = ResumableGlobalBatchSampler(64, 24, seed=3)
    shards = [
        BatchLoader(pictures, 3, augment=True).batch(1, sampler.shard(r, world_size))
        for r in range(world_size)
    ]
    whole = BatchLoader(pictures, 3, augment=True).batch(1, sampler.window())
    assert torch.equal(torch.cat([part.x for part in shards]), whole.x)


def test_a_sample_looks_different_in_other_epochs_and_seeds(pictures: SampleSet) -> None:
    everything = np.arange(64)
    looks = [
        BatchLoader(pictures, seed, augment=True).batch(epoch, everything).x
        for seed, epoch in ((3, 0), (3, 1), (4, 0))
    ]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        changed = (looks[one] != looks[other]).flatten(1).any(dim=1)
        assert int(changed.sum()) > 48  # the same crop and flip twice happens once in 162


def test_a_crop_is_a_shifted_and_perhaps_mirrored_image_with_zeros_around() -> None:
    pixels = np.arange(1, 17, dtype=np.uint8).reshape(1, 1, 4, 4)
    low, high = np.uint64(0), np.uint64(2**32 - 1)
    shifted = augment(pixels, np.array([[low, low, low, low]]), padding=1, flip=True)
    assert shifted[0, 0].tolist() == [[0, 0, 0, 0], [0, 1, 2, 3], [0, 5, 6, 7], [0, 9, 10, 11]]
    mirrored = augment(pixels, np.array([[high, high, high, low]]), padding=1, flip=True)
    assert mirrored[0, 0].tolist() == [[0, 8, 7, 6], [0, 12, 11, 10], [0, 16, 15, 14], [0, 0, 0, 0]]
    unmirrored = augment(pixels, np.array([[high, high, high, low]]), padding=1, flip=False)
    assert unmirrored[0, 0].tolist() == [row[::-1] for row in mirrored[0, 0].tolist()]


def test_without_augmentation_a_sample_is_itself_normalised(pictures: SampleSet) -> None:
    batch = BatchLoader(pictures, 3, augment=False).batch(5, ids(7))
    pixels, _ = pictures.fetch(ids(7))
    mean, std = (
        torch.tensor(values, dtype=torch.float64).view(1, 3, 1, 1)
        for values in (TRAITS.mean, TRAITS.std)
    )
    expected = (torch.from_numpy(pixels).double() / 255 - mean) / std
    assert (batch.x.double() - expected).abs().max() < 1e-5
    x, y, sample_id = pictures[7]
    assert torch.equal(x, batch.x[0])
    assert (y, sample_id) == (2, 7)


def test_a_batch_has_its_types_and_the_hash_of_its_inputs(pictures: SampleSet) -> None:
    batch = BatchLoader(pictures, 3, augment=True).batch(0, ids(1, 2))
    assert (batch.x.dtype, tuple(batch.x.shape), batch.y.dtype) == (
        torch.float32,
        (2, 3, 32, 32),
        torch.int64,
    )
    assert batch.ids.tolist() == [1, 2]
    assert batch.inputs_hash == inputs_hash(batch.x.numpy(), ids(1, 2))
    assert batch.targets_hash == inputs_hash(batch.y.numpy(), ids(1, 2))


def number(text: str) -> int:
    return int(text.partition(":")[2], 16)


def test_the_hash_of_inputs_adds_up_over_any_shards_and_sees_every_bit_and_name(
    pictures: SampleSet,
) -> None:
    x = BatchLoader(pictures, 3, augment=True).batch(0, ids(1, 2, 3)).x.numpy()
    one = (1).to_bytes(8, "little") + x[0].tobytes()
    whole, parts = (
        inputs_hash(x, ids(1, 2, 3)),
        [
            inputs_hash(x[:1], ids(1)),
            inputs_hash(x[1:], ids(2, 3)),
        ],
    )
    assert parts[0] == f"blake3:{blake3(one).hexdigest()}"
    assert inputs_hash(x[:1], ids(1), "sha256") == f"sha256:{hashlib.sha256(one).hexdigest()}"
    assert number(whole) == sum(map(number, parts)) % 2**256
    assert inputs_hash(x[[1, 0, 2]], ids(1, 2, 3)) != whole, "another sample under that name"
    x[2, 0, 0, 0] = np.nextafter(x[2, 0, 0, 0], np.float32(9))
    assert inputs_hash(x, ids(1, 2, 3)) != whole


@pytest.mark.parametrize("name", ["digits", "fake"])
def test_loading_leaves_every_global_generator_alone(name: str) -> None:
    def states() -> tuple[object, ...]:
        return random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()

    before = states()
    dataset = build_dataset(DatasetConfig(name=name, size=40))
    BatchLoader(dataset, 1, augment=True).batch(0, np.arange(8))
    assert states() == before


def test_describe_is_what_the_records_keep(pictures: SampleSet) -> None:
    assert describe(pictures) == DatasetRecord("pictures", 64, 5, (3, 32, 32))
