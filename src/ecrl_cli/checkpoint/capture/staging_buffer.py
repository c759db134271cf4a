"""Staging buffers: shared memory laid out as the files of a checkpoint, into which live tensors are
copied.

The training thread pays for one memory copy only: the layout is planned once, and again only if the
state's structure changes.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import IO, Any, cast

import torch

from ecrl_cli.checkpoint.capture.loading import tensor_at
from ecrl_cli.checkpoint.capture.shared_memory import Memory
from ecrl_cli.checkpoint.capture.tensor_sources import TensorSource, spec_of
from ecrl_cli.checkpoint.capture.train_state import RankStates, TrainState
from ecrl_cli.checkpoint.format.image import ImagePlan, PartPlace, TensorSpec, plan_image, round_up
from ecrl_cli.checkpoint.format.names import PART_OF, step_name
from ecrl_cli.errors import StorageError
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.storage.writing import BLOCK


@dataclass(frozen=True)
class BufferLayout:
    """Layout of the state in a staging buffer. `suffix`: of the single file (empty: a group); with
    `.pt` the serialised file follows the tensors.
    """

    plan: ImagePlan
    suffix: str
    nbytes: int

    def parts(self, step: int, serialized: int) -> tuple[PartPlace, ...]:
        """The files of this snapshot; `serialized` is the length of the `.pt` file."""
        if not self.suffix:
            return self.plan.parts
        name = step_name(step) + self.suffix
        (part,) = self.plan.parts
        if self.suffix == ".pt":
            return (PartPlace(name, self.plan.nbytes, serialized, part.tensors),)
        return (PartPlace(name, part.offset, part.nbytes, part.tensors),)


def plan_layout(sources: list[TensorSource], gathered: RankStates, suffix: str) -> BufferLayout:
    """The layout for these live tensors and generator states."""
    found = [spec_of(source.name, source.find()) for source in sources] + [
        spec_of(name, tensor) for name, tensor in gathered.rng.items()
    ]
    parts: dict[str, list[TensorSpec]] = (
        {"all": found} if suffix else {name: [] for name in dict.fromkeys(PART_OF.values())}
    )
    if not suffix:
        for spec in found:
            parts[PART_OF[spec.name.partition(".")[0]]].append(spec)
    plan = plan_image(parts)
    # a .pt file adds a zip entry per tensor to the data; names are written a few times
    extra = (
        sum(spec.nbytes + 1024 + 8 * len(spec.name) for spec in found) + 2**20
        if suffix == ".pt"
        else 0
    )
    return BufferLayout(plan, suffix, max(BLOCK, round_up(plan.nbytes + extra, BLOCK)))


class StagingBuffer:
    """The memory of one snapshot, with a view for every tensor in it."""

    def __init__(self, memory: Memory, layout: BufferLayout, device: torch.device) -> None:
        self.memory, self.layout, self._device = memory, layout, device
        for offset, header in layout.plan.headers:
            memory.view[offset : offset + len(header)] = header
        self._views = {
            place.spec.name: tensor_at(memory.view, place) for place in layout.plan.tensors
        }
        self.copied_s = 0.0
        self._stream: Any = None
        if device.type == "cuda":
            self._pin()

    def capture(self, tensors: dict[str, torch.Tensor]) -> None:
        """Copy `tensors` into the buffer; returns once the copies are finished, and keeps the
        seconds in `copied_s`. On a GPU they include the kernels that were still to run before.
        """
        began = monotonic()
        targets = [self._views[name] for name in tensors]
        with torch.no_grad():
            if self._stream is None:
                torch._foreach_copy_(targets, list(tensors.values()))
            else:
                self._stream.wait_stream(torch.cuda.current_stream(self._device))
                with torch.cuda.stream(self._stream):
                    torch._foreach_copy_(targets, list(tensors.values()), non_blocking=True)
                # the next optimizer step must not overtake the copies, and the buffer is handed
                # over as a finished image
                self._stream.synchronize()
        self.copied_s = monotonic() - began

    def serialize(self, train: bytes) -> int:
        """format=torch: write the captured tensors and train.json as one torch.save file after the
        image; returns its length in bytes. StorageError if it does not fit.
        """
        room = self.memory.view[self.layout.plan.nbytes :]
        file = _MemoryFile(room)
        torch.save({"tensors": self._views, "train": train.decode()}, cast(IO[bytes], file))
        if file.length > len(room):
            fact = f"the file of {file.length} bytes outgrew its staging buffer of {len(room)}"
            raise StorageError("serialize", fact, "use checkpoint.format=safetensors")
        return file.length

    def close(self) -> None:
        if self._stream is not None:
            _cudart().cudaHostUnregister(self._address)
        self._views = {}
        self.memory.close()

    def _pin(self) -> None:
        """Pin the memory for CUDA: copies into it are asynchronous and run at full link speed.
        StorageError if CUDA refuses.
        """
        torch.cuda.set_device(self._device)  # buffers are made on the receiving thread
        self._address = torch.frombuffer(self.memory.view, dtype=torch.uint8).data_ptr()
        status = _cudart().cudaHostRegister(self._address, self.memory.nbytes, 0)
        if int(status) != 0:
            raise StorageError(
                "pin",
                f"cudaHostRegister of {self.memory.nbytes} bytes gave {status}",
                "raise the limit of locked memory (ulimit -l)",
            )
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


class _MemoryFile(io.RawIOBase):
    """A writable file object over a memory range, for torch.save; what does not fit is only
    counted: raised in `write`, an error would be hidden by one that torch raises when it closes the
    file.
    """

    def __init__(self, view: memoryview) -> None:
        super().__init__()
        self._view, self.length = view, 0

    def write(self, data: Any) -> int:
        piece = memoryview(data).cast("B")
        if self.length + len(piece) <= len(self._view):
            self._view[self.length : self.length + len(piece)] = piece
        self.length += len(piece)
        return len(piece)


class CapturePlanner:
    """The current buffer layout and the tensors to capture, for strategies on rank 0."""

    def __init__(self, train_state: TrainState, suffix: str) -> None:
        self.train_state, self._suffix = train_state, suffix
        self._layout: BufferLayout | None = None
        self._sources: list[TensorSource] = []
        self._signature = (-1, -1)
        self._expected: list[tuple[torch.Size, torch.dtype]] = []
        self.found: dict[str, torch.Tensor] = {}
        self.copied_s = 0.0  # of the capture since

    def refresh(self, gathered: RankStates) -> BufferLayout:
        """Look up the live tensors (into `found`); returns the layout, planned again if it does not
        fit them.
        """
        self.copied_s = 0.0
        if self._layout is None or self._signature != self.train_state.signature():
            self._plan(gathered)
        self._look_up(gathered)
        if [(tensor.shape, tensor.dtype) for tensor in self.found.values()] != self._expected:
            self._plan(gathered)
        assert self._layout is not None
        return self._layout

    def _look_up(self, gathered: RankStates) -> None:
        self.found = {source.name: source.find() for source in self._sources} | gathered.rng

    def _plan(self, gathered: RankStates) -> None:
        self._sources, self._signature = self.train_state.sources(), self.train_state.signature()
        self._layout = plan_layout(self._sources, gathered, self._suffix)
        self._look_up(gathered)
        self._expected = [(tensor.shape, tensor.dtype) for tensor in self.found.values()]
