"""Batches by explicit fetch of given ids: no iterator, no prefetching, no use of a global RNG."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ecrl_cli.data.augment import augmented
from ecrl_cli.data.sample_set import Ids, SampleSet, normalised
from ecrl_cli.records.events import DatasetRecord

Inputs = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Batch:
    """`x`: float32 (n, c, h, w). `y`: int64 (n). `ids`: in the same order. `inputs_hash`: `inputs_hash(x, ids)`.

    `x` and `y` lie in memory allocated by torch, aligned to 64 bytes. NumPy's alignment (16 bytes) varies with the process's history; a matrix
    product may choose its kernel by alignment, and a resumed run would then differ in bits.
    """

    x: torch.Tensor
    y: torch.Tensor
    ids: Ids
    inputs_hash: str


class BatchLoader:
    """Loads batches; a sample's augmentation is a function of (seed, epoch, id) alone."""

    def __init__(self, dataset: SampleSet, seed: int, augment: bool) -> None:
        self._dataset, self._seed, self._augment = dataset, seed, augment

    def batch(self, epoch: int, ids: Ids) -> Batch:
        pixels, labels = self._dataset.fetch(ids)
        traits = self._dataset.traits
        if self._augment:
            pixels = augmented(pixels, self._seed, epoch, ids, traits.flip)
        x = normalised(pixels, traits)
        return Batch(torch.from_numpy(x).clone(), torch.from_numpy(labels).clone(), ids, inputs_hash(x, ids))


def inputs_hash(x: Inputs, ids: Ids) -> str:
    """The sum modulo 2^256, in hex, of each sample's SHA-256 over its id (int64 little-endian) and its raw bytes.

    A sum, so that the shards of a window add up to the same number for any number of ranks.
    """
    each = (hashlib.sha256(name.tobytes() + sample.tobytes()).digest() for name, sample in zip(ids.astype("<i8"), x, strict=True))
    return f"{sum(int.from_bytes(digest, 'big') for digest in each) % 2**256:064x}"


def describe(dataset: SampleSet) -> DatasetRecord:
    """The content of dataset.json for `dataset`."""
    return DatasetRecord(dataset.traits.name, len(dataset), dataset.traits.classes, dataset.traits.shape)
