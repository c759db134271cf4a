"""Batches by explicit fetch of the given ids: nothing iterates, nothing is prefetched, no global RNG is consumed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch

from ecrl_cli.data.augment import augmented
from ecrl_cli.data.sample_set import Ids, SampleSet, normalised
from ecrl_cli.records.events import DatasetRecord


@dataclass(frozen=True)
class Batch:
    """`x`: float32 (n, c, h, w). `y`: int64 (n). `ids`: in the same order. `inputs_hash`: SHA-256 hex of the raw bytes of `x`."""

    x: torch.Tensor
    y: torch.Tensor
    ids: Ids
    inputs_hash: str


class BatchLoader:
    """Gives the samples of any ids as they look in any epoch, a function of (seed, epoch, ids) alone."""

    def __init__(self, dataset: SampleSet, seed: int, augment: bool) -> None:
        self._dataset, self._seed, self._augment = dataset, seed, augment

    def batch(self, epoch: int, ids: Ids) -> Batch:
        pixels, labels = self._dataset.fetch(ids)
        traits = self._dataset.traits
        if self._augment:
            pixels = augmented(pixels, self._seed, epoch, ids, traits.flip)
        x = normalised(pixels, traits)
        return Batch(torch.from_numpy(x), torch.from_numpy(labels), ids, hashlib.sha256(x.data).hexdigest())


def describe(dataset: SampleSet) -> DatasetRecord:
    """What dataset.json says of `dataset`."""
    return DatasetRecord(dataset.traits.name, len(dataset), dataset.traits.classes, dataset.traits.shape)
