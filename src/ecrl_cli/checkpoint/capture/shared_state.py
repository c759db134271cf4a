"""Moves parameters and optimizer state into shared memory, bit for bit, and notices whatever would
make a deferred copy of them unsafe.
"""

from __future__ import annotations

import torch

from ecrl_cli.checkpoint.capture.live_state import HEADER, ChangeCount, LivePlace
from ecrl_cli.checkpoint.capture.shared_memory import Memory
from ecrl_cli.checkpoint.format.image import ALIGN, round_up

# what only an optimizer's step changes; buffers and generators change in forward
_DEFERRED = ("parameters.", "optimizer.")


class NotShareable(Exception):
    """Why a state cannot be copied while training goes on."""


def deferred(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The subset of `tensors` that only an optimizer's step changes."""
    return {
        name: tensor
        for name, tensor in tensors.items()
        if name.startswith(_DEFERRED) and tensor.numel()
    }


class SharedState:
    """`tensors`, by name, in new shared memory: the same objects with the same values, strides and
    flags. Each begins at a multiple of ALIGN bytes.

    Construction raises NotShareable, with nothing moved. Tensors that are moved, replaced or
    changed by others later are noticed by `moved` and `changed`.
    """

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._check(tensors)
        self.places: list[LivePlace] = []
        end = HEADER
        for name, tensor in tensors.items():
            self.places.append(
                LivePlace(name, end, tuple(stride * tensor.itemsize for stride in tensor.stride()))
            )
            end = round_up(end + tensor.nbytes, ALIGN)
        self.memory = Memory.create(round_up(end, HEADER))
        self._tensors = list(tensors.values())
        for place, tensor in zip(self.places, self._tensors, strict=True):
            flat = torch.frombuffer(
                self.memory.view, dtype=tensor.dtype, count=tensor.numel(), offset=place.offset
            )
            tensor.data = flat.as_strided(tensor.shape, tensor.stride()).copy_(tensor.detach())
        self._at = {
            place.name: tensor.data_ptr()
            for place, tensor in zip(self.places, self._tensors, strict=True)
        }
        self.changes = ChangeCount(self.memory)
        self.nbytes = sum(tensor.nbytes for tensor in self._tensors)
        self.note()

    def moved(self, tensors: dict[str, torch.Tensor]) -> str:
        """The first of `tensors` that does not lie where it was put, or that was put there and is
        no longer in `tensors`, by name; else empty.
        """
        elsewhere = (
            name for name, tensor in tensors.items() if tensor.data_ptr() != self._at.get(name)
        )
        return next(elsewhere, "") or next((name for name in self._at if name not in tensors), "")

    def note(self) -> None:
        """Call after each optimizer step: `changed` compares with the state of now."""
        self._versions = [tensor._version for tensor in self._tensors]

    def changed(self) -> str:
        """The first tensor that was written to since `note`, by name; empty if none was."""
        pairs = zip(self.places, self._tensors, self._versions, strict=True)
        return next(
            (place.name for place, tensor, version in pairs if tensor._version != version), ""
        )

    def close(self) -> None:
        """Let go of the memory, which stays as long as the tensors that lie in it."""
        self.changes.close()
        self._tensors = []
        self.memory.disown()

    @staticmethod
    def _check(tensors: dict[str, torch.Tensor]) -> None:
        storages: dict[int, str] = {}
        for name, tensor in tensors.items():
            if tensor.device.type != "cpu":
                raise NotShareable(
                    f"{name} is on {tensor.device}, only a state on the CPU can be shared so far"
                )
            if tensor.layout != torch.strided:
                raise NotShareable(f"{name} is {tensor.layout}")
            storage = tensor.untyped_storage()
            if tensor.storage_offset() or storage.nbytes() != tensor.nbytes:
                raise NotShareable(f"{name} is a view of larger memory")
            if (other := storages.setdefault(storage.data_ptr(), name)) != name:
                raise NotShareable(f"{name} and {other} are the same memory")
            if not _dense(tensor):
                raise NotShareable(f"{name} overlaps itself or has gaps")


def _dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill its memory without gaps or overlaps, in some order of its
    dimensions.
    """
    expected = 1
    for size, stride in sorted(
        zip(tensor.shape, tensor.stride(), strict=True), key=lambda pair: (pair[1], pair[0])
    ):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
