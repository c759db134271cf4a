"""Rank 0's live parameters and optimizer state in shared memory, as the background writer maps and
copies them. Torch-free.

Layout of the memory (a memfd, so that nothing is left behind by anybody's death): a block whose
first word counts the changes of the state, then the tensors. Rank 0 adds one to the word right
before its optimizer changes them; a copy counts only if the word after it is what it was at the
capture.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ecrl_cli.checkpoint.capture.shared_memory import Memory
from ecrl_cli.checkpoint.format.image import DTYPES, PartPlace
from ecrl_cli.errors import StorageError
from ecrl_cli.storage.writing import BLOCK

HEADER = BLOCK  # bytes before the first tensor


@dataclass(frozen=True)
class LivePlace:
    """Where a tensor lies: `offset` in bytes; `strides` in bytes for each dimension."""

    name: str
    offset: int
    strides: tuple[int, ...]


def encode_places(places: Sequence[LivePlace]) -> list[Any]:
    return [[place.name, place.offset, place.strides] for place in places]


def decode_places(value: list[Any]) -> tuple[LivePlace, ...]:
    return tuple(LivePlace(name, offset, tuple(strides)) for name, offset, strides in value)


class ChangeCount:
    """The word in `memory` that counts how often the state in it has changed; only rank 0 writes
    it.
    """

    def __init__(self, memory: Memory) -> None:
        self._word = memory.view[:8].cast("Q")

    @property
    def value(self) -> int:
        return self._word[0]

    def add(self) -> None:
        self._word[0] += 1

    def close(self) -> None:
        self._word.release()


class LiveState:
    """The writer's view of it: read-only. Takes ownership of the descriptor."""

    def __init__(self, fd: int, nbytes: int, places: Sequence[LivePlace]) -> None:
        try:
            self._map = mmap.mmap(fd, nbytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        except (OSError, ValueError) as error:
            raise StorageError(
                "capture",
                f"{nbytes} bytes of rank 0's state cannot be mapped ({error})",
                "use checkpoint.capture=copy",
            ) from error
        finally:
            os.close(fd)
        self._word = np.frombuffer(self._map, dtype=np.uint64, count=1)
        self._places = places

    def copy_into(self, memory: memoryview, parts: Sequence[PartPlace], changes: int) -> bool:
        """Copy every tensor to its place in the image `memory`; whether the state is still that of
        `changes` then.
        """
        targets = {place.spec.name: place for part in parts for place in part.tensors}
        for place in self._places:
            target = targets[place.name]
            shape, kind = target.spec.shape, f"u{DTYPES[target.spec.dtype][1]}"
            source = np.ndarray(shape, kind, self._map, place.offset, place.strides)
            np.copyto(np.ndarray(shape, kind, memory, target.offset), source)
        return int(self._word[0]) == changes

    def close(self) -> None:
        del self._word
        self._map.close()
