"""The tensors of a checkpoint as numpy arrays, after the integrity check: both layouts, both
formats, without torch and without unpickling.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ecrl_cli.checkpoint.format.image import TensorPlace, TensorSpec
from ecrl_cli.checkpoint.format.tensor_table import TENSOR_FILES
from ecrl_cli.checkpoint.store.integrity import (
    CheckpointRejected,
    IntegrityConfig,
    OpenCheckpoint,
    opened,
    tensor_places,
    verify_checkpoint,
)
from ecrl_cli.errors import StorageError
from ecrl_cli.storage.fs import Fs, PosixFs
from ecrl_cli.storage.safe_read import fill

Array = npt.NDArray[Any]
# Of a diverged run NaN is what one wants to see; whoever owns the files, they are only read.
_ANY = IntegrityConfig(trust_owner=True, finite="off")
_NUMPY = {
    "torch.float64": "<f8",
    "torch.int64": "<i8",
    "torch.complex64": "<c8",
    "torch.float32": "<f4",
    "torch.int32": "<i4",
    "torch.float16": "<f2",
    "torch.bfloat16": "<u2",  # numpy has none: its bits
    "torch.int16": "<i2",
    "torch.int8": "i1",
    "torch.uint8": "u1",
    "torch.bool": "u1",
}


@dataclass(frozen=True)
class StoredTensors:
    """The tensors of an open checkpoint by name; `read` brings one into memory."""

    fs: Fs
    places: dict[str, tuple[int, TensorPlace]]

    def spec(self, name: str) -> TensorSpec:
        return self.places[name][1].spec

    def read(self, name: str) -> Array:
        """The values; of bfloat16 the bits."""
        fd, place = self.places[name]
        data = fill(self.fs, fd, memoryview(bytearray(place.spec.nbytes)), place.offset)
        return np.frombuffer(data, dtype=_NUMPY[place.spec.dtype]).reshape(place.spec.shape)


@contextmanager
def stored_tensors(path: Path, fs: Fs | None = None) -> Iterator[StoredTensors]:
    """The tensors of the checkpoint at `path`, a folder or a single file; StorageError, naming the
    layer, if the integrity check refuses it.
    """
    fs, found = fs or PosixFs(), OpenCheckpoint()
    report = verify_checkpoint(path, _ANY, fs, once=True)
    if not report.ok:
        raise _refused(path, report.layer, report.reason)
    try:
        with opened(path, _ANY, fs, found):
            assert found.manifest is not None
            places: dict[str, tuple[int, TensorPlace]] = {}
            for name, fd in found.files.items():
                if name.endswith(TENSOR_FILES):
                    parts = tensor_places(fs, name, fd, found.manifest.parts[name], found.train)
                    places |= {place.spec.name: (fd, place) for place in parts}
            yield StoredTensors(fs, places)
    except CheckpointRejected as refused:
        raise _refused(path, refused.layer, refused.reason) from refused


def _refused(path: Path, layer: str, reason: str) -> StorageError:
    return StorageError(path.name, f"failed at {layer}: {reason}", "`ecrl verify` names the damage")
