"""The interface of a data set: samples by id, as one (x, y, sample_id) or as arrays of many."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Ids = npt.NDArray[np.int64]
Pixels = npt.NDArray[Any]  # uint8 images, float32 measurements
Labels = npt.NDArray[Any]  # int64 classes; of other tasks whatever their loss takes


@dataclass(frozen=True)
class DatasetInfo:
    """`shape`: of one input; of a picture (channels, height, width). `classes`: what the model is built for (classes, tokens, numbers to predict).

    `mean`, `std`: per channel, of pixels divided by `peak`; empty: samples are no pictures, and are trained on as they are.
    `flip`: whether a mirror image shows the same class.
    """

    name: str
    classes: int
    shape: tuple[int, ...]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    peak: int = 255
    flip: bool = True


class SampleSet(ABC):
    """A training set whose samples are identified by their index, never renumbered. Reading one uses no global RNG."""

    traits: DatasetInfo

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def fetch(self, ids: Ids) -> tuple[Pixels, Labels]:
        """Inputs (n, *shape) and targets (n, ...) of `ids`, in that order; of pictures pixels (n, c, h, w) and labels (n)."""

    def __getitem__(self, sample_id: int) -> tuple[torch.Tensor, Any, int]:
        """(x, y, sample_id): one sample, normalised, not augmented."""
        pixels, labels = self.fetch(np.array([sample_id], dtype=np.int64))
        target = int(labels[0]) if labels.ndim == 1 and labels.dtype == np.int64 else torch.from_numpy(labels[0:1].copy())[0]
        return torch.from_numpy(normalised(pixels, self.traits)[0]), target, sample_id


class ArraySet(SampleSet):
    """A data set in memory as two arrays: pixels (size, c, h, w) and labels (size)."""

    def __init__(self, traits: DatasetInfo, pixels: Pixels, labels: Labels) -> None:
        self.traits, self._pixels, self._labels = traits, pixels, labels

    def __len__(self) -> int:
        return len(self._labels)

    def fetch(self, ids: Ids) -> tuple[Pixels, Labels]:
        return self._pixels[ids], self._labels[ids]


def normalised(pixels: Pixels, traits: DatasetInfo) -> npt.NDArray[Any]:
    """(pixels / peak - mean) / std as float32, elementwise: a sample's bits do not depend on its batch. What is no picture: as it is, in C order."""
    if not traits.mean:
        return np.ascontiguousarray(pixels)
    mean, std = (np.array(values, dtype=np.float32).reshape(1, -1, 1, 1) for values in (traits.mean, traits.std))
    x = pixels.astype(np.float32, order="C")  # a decoded image may be channels-last; the hashed bytes must be in the tensor's order
    x -= mean * np.float32(traits.peak)
    x /= std * np.float32(traits.peak)
    return x
