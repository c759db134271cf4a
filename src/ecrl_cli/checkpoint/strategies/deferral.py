"""Deferred capture, on rank 0's side: what the writer may copy while training goes on, and the wait
before the optimizer changes it.

Exact because three things hold, each of which is checked: the tensors lie in the memory that the
writer maps (`SharedState.moved`), only the optimizer's step writes to them (`SharedState.changed`,
watched for a whole step before the first capture is deferred, and in every step after it), and that
step waits for the copy. Where one of them fails, captures are copies from then on, and the record
says why.

Only rank 0 can read torch's change counters. So the writer saves a copy only after rank 0 has read
them once more after the copy and confirmed it (`_confirm`). An unconfirmed copy is refused, unless
rank 0 logged a digest of that state, against which the writer checks it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from ecrl_cli.checkpoint.capture.shared_state import NotShareable, SharedState, deferred
from ecrl_cli.checkpoint.store.checkpoint_log import CheckpointLog
from ecrl_cli.checkpoint.writer.client import WriterClient, WriterGone
from ecrl_cli.errors import StorageError
from ecrl_cli.records.events import COPY_WAIT
from ecrl_cli.records.span_clock import SpanClock

UNWATCHED = "no step has been watched yet"
_BEAT_S = 0.5


@dataclass
class Deferral:
    """`reason`: why the next capture is a copy; empty if it can be deferred. `beat`: called now and
    then while the optimizer waits for the writer, which the supervisor watches. `tell`: prints one
    line for the user.
    """

    optimizer: torch.optim.Optimizer
    clock: SpanClock
    log: CheckpointLog
    beat: Callable[[], None]
    tell: Callable[[str], None]
    reason: str = "nothing is shared with the writer"

    def __post_init__(self) -> None:
        self._state: SharedState | None = None
        self._client: WriterClient | None = None
        self._hooks: list[Any] = []
        self._step = 0  # of the last capture that was deferred
        self._given_up = False

    def begin(self, client: WriterClient, tensors: dict[str, torch.Tensor]) -> None:
        """Share what can be deferred of `tensors` with the writer behind `client`."""
        self.wait()
        self._client = client
        if self._given_up:
            return
        shared = deferred(tensors)
        if self._state is None or self._state.moved(shared):
            self._release()
            try:
                self._state = SharedState(shared)
            except (NotShareable, StorageError) as why:
                self._give_up(why.fact if isinstance(why, StorageError) else str(why))
                return
            self._hooks = [
                self.optimizer.register_step_pre_hook(self._before),
                self.optimizer.register_step_post_hook(self._after_step),
            ]
            self.reason = UNWATCHED
        client.share(self._state.memory, self._state.places)

    def later(self, tensors: dict[str, torch.Tensor], global_step: int) -> dict[str, torch.Tensor]:
        """The subset of `tensors` that the writer is to copy for the checkpoint of `global_step`;
        none, with a `reason`, where it cannot.
        """
        if self._state is None or self.reason:
            return {}
        found = deferred(tensors)
        if name := self._state.moved(found):
            self._give_up(f"{name} was replaced by another tensor")
            return {}
        if name := self._state.changed():
            self._give_up(f"{name} was changed outside of the optimizer's step")
            return {}
        self._step = global_step
        return found

    @property
    def changes(self) -> int:
        """How often the shared state has changed so far."""
        assert self._state is not None
        return self._state.changes.value

    def wait(self) -> None:
        """Return when the shared state may change; the seconds until then are on record as part of
        the stall.
        """
        client = self._client
        if client is None or not client.uncopied:
            return
        before = self.clock.category
        began = self.clock.switch("write_wait")
        client.wait_copied(self.beat, _BEAT_S)
        waited = self.clock.switch(before) - began
        self.log.write("waited", self._step, stall_s=waited, stall_parts={COPY_WAIT: waited})

    def confirm_copy(self) -> None:
        """Wait for the copy and confirm it, where no update does: the writer can end the
        checkpoint, and free its buffer. The caller's clock runs.
        """
        if self._client is not None and self._client.unconfirmed:
            self._client.wait_copied(self.beat, _BEAT_S)
            self._confirm()

    def end(self) -> None:
        """Wait for the writer, and let go of optimizer and memory; the tensors stay where they
        are.
        """
        self.wait()
        self._confirm()
        self._client = None
        self._release()

    def _before(self, *given: Any) -> None:
        """The optimizer is about to change the state."""
        assert self._state is not None
        self.wait()
        if name := self._state.changed():
            self._give_up(f"{name} was changed outside of the optimizer's step")
        elif not self._given_up:
            self.reason = ""
        self._confirm()
        self._state.changes.add()

    def _confirm(self) -> None:
        """Tell the writer, which has copied the shared state, whether that was still the state of
        its step. One that has ended need not know.
        """
        if self._client is not None and self._state is not None and self._client.unconfirmed:
            with suppress(WriterGone):
                self._client.confirm(self._state.changed())

    def _after_step(self, *given: Any) -> None:
        if self._state is not None:
            self._state.note()

    def _give_up(self, why: str) -> None:
        if not self._given_up:
            self.tell(
                "checkpoint.capture=deferred is not possible, checkpoints are captured by a copy:"
                f" {why}"
            )
        self._given_up, self.reason = True, why

    def _release(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self._state is not None:
            self._state.close()
            self._state = None
