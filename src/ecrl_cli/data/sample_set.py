"""The interface of a data set: samples by id, as one (x, y, sample_id) or as arrays of many."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ecrl_cli.errors import DatasetError, shown

Ids = npt.NDArray[np.int64]
Pixels = npt.NDArray[Any]  # uint8 images, float32 measurements
Labels = npt.NDArray[Any]  # int64 classes; of other tasks whatever their loss takes


@dataclass(frozen=True)
class DatasetInfo:
    """`shape`: of one input; of a picture (channels, height, width). `classes`: what the model is
    built for (classes, tokens, numbers to predict).

    `mean`, `std`: per channel, of pixels divided by `peak`; empty: samples are no pictures, and are
    trained on as they are.
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
    """A set of samples that are identified by their index, never renumbered. Reading one uses no
    global RNG.
    """

    traits: DatasetInfo

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def fetch(self, ids: Ids) -> tuple[Pixels, Labels]:
        """Inputs (n, *shape) and targets (n, ...) of `ids`, in that order; of pictures pixels (n,
        c, h, w) and labels (n).
        """

    def held_out(self) -> SampleSet | None:
        """The samples that are not trained on, of the same shape and classes, to measure quality on
        (`evaluate.every`); None: there are none.
        """
        return None

    def __getitem__(self, sample_id: int) -> tuple[torch.Tensor, Any, int]:
        """(x, y, sample_id): one sample, normalised, not augmented."""
        pixels, labels = self.fetch(np.array([sample_id], dtype=np.int64))
        target = (
            int(labels[0])
            if labels.ndim == 1 and labels.dtype == np.int64
            else torch.from_numpy(labels[0:1].copy())[0]
        )
        return torch.from_numpy(normalised(pixels, self.traits)[0]), target, sample_id


class ArraySet(SampleSet):
    """A data set in memory as two arrays: pixels (size, c, h, w) and labels (size)."""

    def __init__(self, traits: DatasetInfo, pixels: Pixels, labels: Labels) -> None:
        self.traits, self._pixels, self._labels = traits, pixels, labels

    def __len__(self) -> int:
        return len(self._labels)

    def fetch(self, ids: Ids) -> tuple[Pixels, Labels]:
        return self._pixels[ids], self._labels[ids]


class Part(SampleSet):
    """Some samples of `whole`, by their place in `ids`; `rest`: the part that is held out, None
    where this is that part.
    """

    def __init__(self, whole: SampleSet, ids: Ids, rest: Part | None = None) -> None:
        self.traits, self._whole, self._ids, self._rest = whole.traits, whole, ids, rest

    def __len__(self) -> int:
        return len(self._ids)

    def fetch(self, ids: Ids) -> tuple[Pixels, Labels]:
        return self._whole.fetch(self._ids[ids])

    def held_out(self) -> SampleSet | None:
        return self._rest


def without(whole: SampleSet, held_out: int) -> Part:
    """`whole` without `held_out` of its samples, which are its `held_out()`. Which ones depends on
    the two sizes alone: they are the same for every seed, and of all classes where samples are
    sorted by class. DatasetError if nothing would be left to train on.
    """
    size = len(whole)
    if held_out >= size:
        name = whole.traits.name
        raise DatasetError(
            "dataset.held_out",
            f"{held_out} of the {size} samples of {name} leave nothing to train on",
            f"use less than {size}",
        )
    drawn = np.random.Generator(
        np.random.PCG64(np.random.SeedSequence([size, held_out]))
    ).permutation(size)
    return Part(whole, np.sort(drawn[held_out:]), Part(whole, np.sort(drawn[:held_out])))


def normalised(pixels: Pixels, traits: DatasetInfo) -> npt.NDArray[Any]:
    """(pixels / peak - mean) / std as float32, elementwise: a sample's bits do not depend on its
    batch. What is no picture: as it is, in C order.
    """
    if not traits.mean:
        return np.ascontiguousarray(pixels)
    mean, std = (
        np.array(values, dtype=np.float32).reshape(1, -1, 1, 1)
        for values in (traits.mean, traits.std)
    )
    # a decoded image may be channels-last; the hashed bytes must be in the tensor's order
    x = pixels.astype(np.float32, order="C")
    x -= mean * np.float32(traits.peak)
    x /= std * np.float32(traits.peak)
    return x


WAY = (
    "give items (x, y, id) of tensors, arrays or numbers whose id is their index, or make it a"
    " SampleSet (docs/extend.md shows one)"
)


class TupleSet(SampleSet):
    """Adapts a map-style data set with items (x, y) or (x, y, id). x is used as it is: no
    normalisation, no augmentation.

    `inner`: has `__len__`, and `inner[i]` is deterministic.
    `inner.classes`: the number of classes, or a list of their names. Optional for float targets:
    the model then predicts as many numbers as y has.
    `inner.held_out`: optional data set of the same form, used for evaluation only.
    Raises DatasetError, one line, if `inner` has another form.
    """

    def __init__(self, name: str, inner: Any) -> None:
        if not (hasattr(inner, "__len__") and hasattr(inner, "__getitem__")):
            raise DatasetError(
                "dataset",
                f"{shown(name)} is a {type(inner).__name__} without length and items",
                WAY,
            )
        self._name, self._inner = name, inner
        if not len(inner):
            raise DatasetError(
                "dataset", f"{shown(name)} has no samples", "look at where it looks for its files"
            )
        x, y = self._one(0)
        classes = getattr(inner, "classes", y.size if y.dtype.kind == "f" else None)
        if isinstance(classes, Sized):
            classes = len(classes)
        if not isinstance(classes, int):
            raise DatasetError(
                "dataset",
                f"{shown(name)} does not say how many classes it has",
                "give it an attribute `classes`: a number or a list",
            )
        self.traits = DatasetInfo(name, classes, x.shape, flip=False)

    def __len__(self) -> int:
        return len(self._inner)

    def fetch(self, ids: Ids) -> tuple[Pixels, Labels]:
        inputs, targets = zip(*(self._one(int(sample_id)) for sample_id in ids), strict=True)
        try:
            return np.stack(inputs), np.stack(targets)
        except ValueError as error:
            raise DatasetError(
                "dataset",
                f"{shown(self._name)} has samples of several shapes ({error})",
                "pad or crop them to one",
            ) from error

    def held_out(self) -> SampleSet | None:
        found = getattr(self._inner, "held_out", None)
        return (
            None
            if found is None
            else found
            if isinstance(found, SampleSet)
            else TupleSet(self._name, found)
        )

    def _one(self, index: int) -> tuple[Pixels, Labels]:
        item = self._inner[index]
        if not isinstance(item, tuple | list) or len(item) not in (2, 3):
            raise DatasetError(
                "dataset",
                f"item {index} of {shown(self._name)} is no tuple (x, y, id) but a"
                f" {type(item).__name__}",
                WAY,
            )
        if len(item) == 3 and int(item[2]) != index:
            raise DatasetError(
                "dataset",
                f"item {index} of {shown(self._name)} says that its id is {item[2]}: samples keep"
                " their index",
                WAY,
            )
        return self._array(index, "x", item[0]), self._array(index, "y", item[1])

    def _array(self, index: int, what: str, value: Any) -> Any:
        array = value.numpy(force=True) if isinstance(value, torch.Tensor) else np.asarray(value)
        if array.dtype.kind not in "iuf":
            raise DatasetError(
                "dataset",
                f"{what} of item {index} of {shown(self._name)} is a {type(value).__name__}, which"
                " is no array",
                WAY,
            )
        python = isinstance(value, int | float | list)  # NumPy makes float64 of these
        return array.astype(np.float32) if python and array.dtype.kind == "f" else array
