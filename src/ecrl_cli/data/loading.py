"""Batches by explicit fetch of given ids, augmented and hashed: no iterator, no prefetching, no use
of a global RNG.

Augmentation is a random crop and a horizontal flip, drawn from Philox4x32-10 (Salmon et al., SC
2011) keyed by (seed, epoch, sample_id): each sample has its own counter, so it looks the same on
any rank, world size and attempt, whatever was drawn before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from blake3 import blake3

from ecrl_cli.config.schema import DIGESTS
from ecrl_cli.data.sample_set import Ids, SampleSet, normalised
from ecrl_cli.records.events import DatasetRecord

Pixels = npt.NDArray[np.uint8]
Inputs = npt.NDArray[Any]
Words = npt.NDArray[np.uint64]

# by checkpoint.digest
_HASHES: dict[str, Callable[[bytes], Any]] = {"blake3": blake3, "sha256": hashlib.sha256}

# Of Philox4x32-10.
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW, _SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32)
_ROUNDS = 10


@dataclass(frozen=True)
class SampleBatch:
    """`x`: inputs (n, *shape), of pictures float32. `y`: targets (n, ...), of classes int64. `ids`:
    in the same order.
    `inputs_hash`: `inputs_hash(x, ids, checkpoint.digest)`; `targets_hash`: likewise of y.

    `x` and `y` lie in memory allocated by torch, aligned to 64 bytes. NumPy's alignment (16 bytes)
    varies with the process's history; a matrix product may choose its kernel by alignment, and a
    resumed run would then differ in bits.
    """

    x: torch.Tensor
    y: torch.Tensor
    ids: Ids
    inputs_hash: str
    targets_hash: str | None = None


class BatchLoader:
    """Loads batches; a sample's augmentation is a function of (seed, epoch, id) alone."""

    def __init__(
        self, dataset: SampleSet, seed: int, augment: bool, digest: str = DIGESTS[0]
    ) -> None:
        self._dataset, self._seed, self._augment, self._digest = dataset, seed, augment, digest

    def batch(self, epoch: int, ids: Ids) -> SampleBatch:
        pixels, labels = self._dataset.fetch(ids)
        traits = self._dataset.traits
        if self._augment:
            pixels = augmented(pixels, self._seed, epoch, ids, traits.flip)
        x = normalised(pixels, traits)
        y = torch.from_numpy(labels).clone()
        return SampleBatch(
            torch.from_numpy(x).clone(),
            y,
            ids,
            inputs_hash(x, ids, self._digest),
            inputs_hash(y.numpy(), ids, self._digest),
        )


def inputs_hash(x: Inputs, ids: Ids, digest: str = DIGESTS[0]) -> str:
    """`digest:` and the sum modulo 2^256, in hex, of each sample's digest over its id (int64
    little-endian) and its raw bytes.

    A sum, so that the shards of a window add up to the same number for any number of ranks. Older
    records have SHA-256's sum without its name.
    """
    new = _HASHES[digest]
    each = (
        new(name.tobytes() + sample.tobytes()).digest()
        for name, sample in zip(ids.astype("<i8"), x, strict=True)
    )
    return f"{digest}:{sum(int.from_bytes(one, 'big') for one in each) % 2**256:064x}"


def describe(dataset: SampleSet) -> DatasetRecord:
    """The content of dataset.json for `dataset`."""
    traits = dataset.traits
    pixels, targets = dataset.fetch(np.zeros(1, dtype=np.int64))
    inputs = normalised(pixels, traits)
    return DatasetRecord(
        traits.name,
        len(dataset),
        traits.classes,
        traits.shape,
        inputs.dtype.name,
        targets.dtype.name,
        targets.shape[1:],
    )


def augmented(
    pixels: Pixels, seed: int, epoch: int, ids: npt.NDArray[np.int64], flip: bool
) -> Pixels:
    """`pixels` of the samples `ids`, augmented as in `epoch`; padding is an eighth of the height (4
    of 32, 1 of 8).
    """
    return augment(pixels, draws(seed, epoch, ids), pixels.shape[2] // 8, flip)


def augment(pixels: Pixels, words: npt.NDArray[np.uint64], padding: int, flip: bool) -> Pixels:
    """Crops `pixels` (n, c, h, w) at random from the zero-padded images and flips half of them;
    `words` (n, 4) are the random numbers.
    """
    n, _, height, width = pixels.shape
    padded = np.pad(pixels, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    rows, columns = integers(words[:, 0], 2 * padding + 1), integers(words[:, 1], 2 * padding + 1)
    flipped = integers(words[:, 2], 2).astype(bool) if flip else np.zeros(n, dtype=bool)
    out = np.empty_like(pixels)
    for i, (top, left, mirrored) in enumerate(
        zip(rows.tolist(), columns.tolist(), flipped.tolist(), strict=True)
    ):
        crop = padded[i, :, top : top + height, left : left + width]
        out[i] = crop[:, :, ::-1] if mirrored else crop
    return out


def philox4x32(counter: Words, key: tuple[int, int]) -> Words:
    """Four 32-bit words for each row of `counter`: (n, 4) to (n, 4), every word in the low half of
    a uint64.
    """
    c0, c1, c2, c3 = counter.T
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (product1 >> _SHIFT) ^ c1 ^ np.uint64(k0),
            product1 & _LOW,
            (product0 >> _SHIFT) ^ c3 ^ np.uint64(k1),
            product0 & _LOW,
        )
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return np.stack((c0, c1, c2, c3), axis=1)


def draws(seed: int, epoch: int, ids: npt.NDArray[np.int64]) -> Words:
    """Four 32-bit words per sample, a function of (seed, epoch, sample id) alone."""
    counter = np.zeros((len(ids), 4), dtype=np.uint64)
    unsigned = ids.astype(np.uint64)
    counter[:, 0], counter[:, 1], counter[:, 2] = (
        unsigned & _LOW,
        unsigned >> _SHIFT,
        np.uint64(epoch),
    )
    return philox4x32(counter, (seed & 0xFFFFFFFF, seed >> 32))


def integers(words: npt.NDArray[np.uint64], below: int) -> npt.NDArray[np.int64]:
    """Maps 32-bit `words` to integers in [0, below) by multiplication, without rejection: one word
    per integer.
    """
    return ((words * np.uint64(below)) >> _SHIFT).astype(np.int64)
