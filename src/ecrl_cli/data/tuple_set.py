"""A map-style data set of somebody else's, whose items are tuples (x, y) or (x, y, id), as a `SampleSet`."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import numpy as np
import torch

from ecrl_cli.data.sample_set import DatasetInfo, Ids, Labels, Pixels, SampleSet
from ecrl_cli.errors import DatasetError, shown

WAY = "give items (x, y, id) of tensors, arrays or numbers whose id is their index, or make it a SampleSet (CONTRIBUTING.md shows one)"


class TupleSet(SampleSet):
    """Trains on x as it is: nothing is normalised or augmented. `inner`: has a length, and `inner[i]` is the sample i, always the same.

    `inner.classes`, a number or a list: what the model is built for; where targets are floats it may be missing: so many numbers are predicted.
    DatasetError, in one line, for what is not of that form.
    """

    def __init__(self, name: str, inner: Any) -> None:
        if not (hasattr(inner, "__len__") and hasattr(inner, "__getitem__")):
            raise DatasetError("dataset", f"{shown(name)} is a {type(inner).__name__} without length and items", WAY)
        self._name, self._inner = name, inner
        if not len(inner):
            raise DatasetError("dataset", f"{shown(name)} has no samples", "look at where it looks for its files")
        x, y = self._one(0)
        classes = getattr(inner, "classes", y.size if y.dtype.kind == "f" else None)
        if isinstance(classes, Sized):
            classes = len(classes)
        if not isinstance(classes, int):
            raise DatasetError("dataset", f"{shown(name)} does not say how many classes it has", "give it an attribute `classes`: a number or a list")
        self.traits = DatasetInfo(name, classes, x.shape, flip=False)

    def __len__(self) -> int:
        return len(self._inner)

    def fetch(self, ids: Ids) -> tuple[Pixels, Labels]:
        inputs, targets = zip(*(self._one(int(sample_id)) for sample_id in ids), strict=True)
        try:
            return np.stack(inputs), np.stack(targets)
        except ValueError as error:
            raise DatasetError("dataset", f"{shown(self._name)} has samples of several shapes ({error})", "pad or crop them to one") from error

    def _one(self, index: int) -> tuple[Pixels, Labels]:
        item = self._inner[index]
        if not isinstance(item, tuple | list) or len(item) not in (2, 3):
            raise DatasetError("dataset", f"item {index} of {shown(self._name)} is no tuple (x, y, id) but a {type(item).__name__}", WAY)
        if len(item) == 3 and int(item[2]) != index:
            raise DatasetError("dataset", f"item {index} of {shown(self._name)} says that its id is {item[2]}: samples keep their index", WAY)
        return self._array(index, "x", item[0]), self._array(index, "y", item[1])

    def _array(self, index: int, what: str, value: Any) -> Any:
        array = value.numpy(force=True) if isinstance(value, torch.Tensor) else np.asarray(value)
        if array.dtype.kind not in "iuf":
            raise DatasetError("dataset", f"{what} of item {index} of {shown(self._name)} is a {type(value).__name__}, which is no array", WAY)
        python = isinstance(value, int | float | list)  # NumPy makes float64 of these
        return array.astype(np.float32) if python and array.dtype.kind == "f" else array
