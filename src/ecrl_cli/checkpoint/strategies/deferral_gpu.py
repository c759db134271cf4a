"""Deferred capture of a state on a GPU: a stream of its own copies it into pinned memory while
training's streams go on.

Nothing on the host waits for these copies. What changes in the next forward pass (buffers) is
copied first, and training's stream waits for that on the GPU; right before the optimizer's step it
waits for the rest, which a thread of its own has begun meanwhile. The image goes to the background
writer when the copies have ended, and only if nothing but that step has written to the state by
then: rank 0 looks, as on the CPU (`deferral`).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import torch

from ecrl_cli.checkpoint.capture.shared_memory import Memory
from ecrl_cli.checkpoint.capture.shared_state import deferred
from ecrl_cli.checkpoint.capture.staging_buffer import BufferLayout, StagingBuffer
from ecrl_cli.checkpoint.format.image import CheckpointImage
from ecrl_cli.checkpoint.store.checkpoint_log import CheckpointLog
from ecrl_cli.checkpoint.strategies.deferral import UNWATCHED, Deferral
from ecrl_cli.checkpoint.writer.client import WriterClient, WriterGone
from ecrl_cli.errors import StorageError, first_line
from ecrl_cli.records.layout import RunLayout

CHANGED = "{} was changed outside of the optimizer's step while it was copied"


@dataclass
class Copying:
    """A capture that the GPU still copies into the staging buffer `number`. `begun`: gives the
    event of the last copy, and aliases of the tensors, so that their memory stays until then. `at`:
    where the tensors lay at the capture, by name.
    """

    number: int
    image: CheckpointImage
    begun: Future[tuple[Any, list[torch.Tensor]]]
    at: dict[str, int]

    def synchronize(self) -> None:
        """Return when the copies have ended, or could not be begun."""
        if self.begun.exception() is None:
            self.begun.result()[0].synchronize()


class PinnedBuffer(StagingBuffer):
    """A staging buffer into which a GPU copies by itself."""

    def capture(self, tensors: dict[str, torch.Tensor]) -> None:
        """Captures as on the CPU where no tensor is on the GPU: the host then waits for nothing."""
        stream = self._stream
        if not any(tensor.is_cuda for tensor in tensors.values()):
            self._stream = None
        try:
            super().capture(tensors)
        finally:
            self._stream = stream

    def copy_at_once(self, tensors: dict[str, torch.Tensor]) -> None:
        """Begin a capture: nothing is copied before the current stream has done what it was given
        so far. Begin to copy `tensors`, which the next forward pass may change: the current stream
        waits for that on the GPU.
        """
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        if tensors:
            copied, _ = self.copy_later(tensors)
            current.wait_event(copied)

    def copy_later(self, tensors: dict[str, torch.Tensor]) -> tuple[Any, list[torch.Tensor]]:
        """After `copy_at_once`: begin to copy `tensors`; they may be read meanwhile and must not be
        written. Returns the event of the last copy, and aliases to keep until then. Of a thousand
        tensors this takes milliseconds, so a thread of its own calls it.
        """
        kept = []
        with torch.no_grad(), torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            for name, tensor in tensors.items():
                kept.append(tensor.detach())
                self._views[name].copy_(kept[-1], non_blocking=True)
            return self._stream.record_event(), kept


class GpuWriterClient(WriterClient):
    """A connection whose images the GPU may still be copying when they are submitted; one at a
    time. `failed`: logs a checkpoint as failed.
    """

    def __init__(
        self,
        layout: RunLayout,
        make_slot: Callable[[Memory], StagingBuffer],
        failed: Callable[[int, StorageError], None],
    ) -> None:
        super().__init__(layout, make_slot)
        self._failed = failed
        self._at_once: dict[str, torch.Tensor] = {}
        self._later: dict[str, torch.Tensor] = {}
        self._at: dict[str, int] = {}
        self._copying: Copying | None = None
        self._handed: Future[None] | None = None
        self._handed_step = 0
        self._helper = ThreadPoolExecutor(1, thread_name_prefix="gpu-copy")

    def copy_next(
        self, at_once: dict[str, torch.Tensor], later: dict[str, torch.Tensor], at: dict[str, int]
    ) -> None:
        """Sets the tensors that the GPU copies for the image that is submitted next. `later`: only
        an optimizer changes it, and it lies at the addresses `at`.
        """
        self._at_once, self._later, self._at = at_once, later, at

    @property
    def unconfirmed(self) -> bool:
        return self._copying is not None

    def take(self) -> tuple[int, StagingBuffer]:
        self.collect()
        return super().take()

    def submit(self, number: int, image: CheckpointImage, changes: int | None = None) -> None:
        """Submits as on the CPU; with `changes` begins to copy what is deferred: the image follows
        once that is confirmed and done.
        """
        if changes is None:
            super().submit(number, image)
            return
        slot = cast(PinnedBuffer, self._slots[number])
        slot.copy_at_once(self._at_once)
        self._copying = Copying(
            number, image, self._helper.submit(slot.copy_later, self._later), self._at
        )
        self._at_once, self._later = {}, {}

    def wait_copied(self, beat: Callable[[], None], every_s: float) -> None:
        """Return when the GPU has copied what was submitted, which takes less than the time between
        two beats.
        """
        beat()
        if self._copying is not None:
            self._copying.synchronize()

    def confirm(self, changed: str) -> None:
        """The optimizer is about to change the state: on the GPU that waits for the copies.
        `changed`: what others have changed, by name; the image is then given up.
        """
        copying, self._copying = self._copying, None
        assert copying is not None
        if copying.begun.exception() is None:
            torch.cuda.current_stream().wait_event(copying.begun.result()[0])
        self._handed_step = copying.image.stamp.global_step
        self._handed = self._helper.submit(
            self._hand_over, copying, CHANGED.format(changed) if changed else ""
        )

    def wait_idle(self) -> None:
        self.collect()
        super().wait_idle()

    def collect(self) -> None:
        """Return when the image that was confirmed last is with the writer; one that was given up,
        or found no writer, is logged as failed.
        """
        handed, self._handed = self._handed, None
        if handed is None:
            return
        try:
            handed.result()
        except StorageError as error:
            self._failed(self._handed_step, error)
        except WriterGone as gone:
            self._failed(
                self._handed_step,
                StorageError(
                    "writer", str(gone), "a new writer is looked for at the next checkpoint"
                ),
            )

    def close(self) -> None:
        if self._copying is not None:
            self._copying.synchronize()  # before its memory goes
        self.collect()
        self._helper.shutdown()
        super().close()

    def _hand_over(self, copying: Copying, refused: str) -> None:
        copying.synchronize()
        if error := copying.begun.exception():
            refused = f"the GPU's copy could not be begun ({first_line(error, 200)})"
        else:
            kept = copying.begun.result()[1]
            moved = (
                name
                for (name, at), alias in zip(copying.at.items(), kept, strict=True)
                if alias.data_ptr() != at
            )
            refused = refused or next(map(CHANGED.format, moved), "")
            kept.clear()
        if refused:
            with self._changed:
                self._free.append(copying.number)
            fact = f"step {copying.image.stamp.global_step}: {refused}"
            raise StorageError("capture", fact, "use checkpoint.capture=copy")
        # with the digest that rank 0 logged, against which the writer checks it
        super().submit(copying.number, copying.image)


class WatchedState:
    """State that only an optimizer's step may write to or replace; other writes are noticed by
    `changed`.
    """

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self._at: list[int] = []
        self.changes = _NoCount()
        self.note()

    def is_of(self, tensors: dict[str, torch.Tensor]) -> bool:
        """Whether it watches these."""
        return len(tensors) == len(self._tensors) and all(
            a is b for a, b in zip(tensors.values(), self._tensors.values(), strict=True)
        )

    def place(self) -> dict[str, int]:
        """Call at a capture: from then on also a tensor that lies elsewhere counts as changed,
        until the next `note`. Returns where each lies.
        """
        self._at = [tensor.data_ptr() for tensor in self._tensors.values()]
        return dict(zip(self._tensors, self._at, strict=True))

    def view(self) -> str:
        """The first tensor that is a view of larger memory, which is written to uncounted, by name;
        empty if none is.
        """
        parts = (
            name
            for name, tensor in self._tensors.items()
            if tensor.storage_offset() or tensor.untyped_storage().nbytes() != tensor.nbytes
        )
        return next(parts, "")

    def note(self) -> None:
        """Call after each optimizer step: `changed` compares with the state of now."""
        self._versions = [tensor._version for tensor in self._tensors.values()]
        self._at = []

    def changed(self) -> str:
        """The first tensor that was written to since `note`, or moved since `place`, by name; empty
        if none was.
        """
        for (name, tensor), version in zip(self._tensors.items(), self._versions, strict=True):
            if tensor._version != version:
                return name
        placed = zip(self._tensors.items(), self._at, strict=True) if self._at else ()
        return next((name for (name, tensor), at in placed if tensor.data_ptr() != at), "")

    def close(self) -> None:
        self._tensors, self._versions, self._at = {}, [], []


class _NoCount:
    """Stands where the CPU's shared memory counts the changes for the writer's process, which
    copies nothing from a GPU.
    """

    value = 0

    def add(self) -> None: ...


class GpuDeferral(Deferral):
    """Deferred capture of a state that the GPU copies itself."""

    def begin(self, client: WriterClient, tensors: dict[str, torch.Tensor]) -> None:
        """Watch `tensors`, from their next update on."""
        self._client = client
        if self._given_up:
            return
        self._release()
        state = WatchedState(_on_gpu(deferred(tensors)))
        if name := state.view():
            self._give_up(f"{name} is a view of larger memory")
            return
        self._state = cast(Any, state)
        self._hooks = [
            self.optimizer.register_step_pre_hook(self._before),
            self.optimizer.register_step_post_hook(self._after_step),
        ]
        self.reason = UNWATCHED

    def later(self, tensors: dict[str, torch.Tensor], global_step: int) -> dict[str, torch.Tensor]:
        """The subset of `tensors` that the GPU copies by itself; none, with a `reason`, where
        others write to them too.
        """
        if self._state is None or self.reason:
            return {}
        state = cast(WatchedState, self._state)
        if name := state.changed():
            self._give_up(f"{name} was changed outside of the optimizer's step")
            return {}
        found = _on_gpu(tensors)
        later = deferred(found)
        if not state.is_of(later):  # an optimizer may have made new ones
            state = WatchedState(later)
            if name := state.view():
                self._give_up(f"{name} is a view of larger memory")
                return {}
            self._state = cast(Any, state)
        self._step = global_step
        cast(GpuWriterClient, self._client).copy_next(
            {name: found[name] for name in found.keys() - later.keys()}, later, state.place()
        )
        return found


def _on_gpu(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in tensors.items() if tensor.is_cuda and tensor.numel()}


def gpu_client(
    run: RunLayout, layout: BufferLayout, device: torch.device, log: CheckpointLog
) -> GpuWriterClient:
    """A connection for a state on a GPU."""
    return GpuWriterClient(run, lambda memory: PinnedBuffer(memory, layout, device), log.failed)
