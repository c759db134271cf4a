"""The blocking strategy: barrier, capture, write, barrier. No rank computes until the checkpoint is
durable.
"""

from __future__ import annotations

from typing import Self

from ecrl_cli.checkpoint.capture.shared_memory import Memory
from ecrl_cli.checkpoint.capture.staging_buffer import StagingBuffer
from ecrl_cli.checkpoint.capture.train_state import RankStates
from ecrl_cli.checkpoint.format.image import CheckpointImage
from ecrl_cli.checkpoint.format.names import TRAIN
from ecrl_cli.checkpoint.format.train_document import NOWHERE, TrainPosition
from ecrl_cli.checkpoint.store.checkpoint_log import save_and_record
from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.checkpoint.strategies.strategy import StrategyContext, StrategyInputs


class BlockingStrategy:
    """Rank 0 writes in its own process, from one staging buffer; the others wait at the barrier."""

    def __init__(self, context: StrategyContext, store: CheckpointStore) -> None:
        self._context, self._store = context, store
        self._slot: StagingBuffer | None = None

    @classmethod
    def make(cls, inputs: StrategyInputs) -> Self:
        return cls(inputs.context(), inputs.store())

    def prepare(self) -> None:
        gathered = self._context.train_state.gather(NOWHERE)
        if self._context.writes:
            self._store.claim(self._context.attempt)
            self._ready(gathered)

    def save(self, progress: TrainPosition) -> None:
        context = self._context
        context.clock.switch("sync")
        gathered = context.train_state.gather(progress)
        context.clock.mark()
        if context.writes:
            self._write(progress, gathered)
            context.clock.switch("sync")
        context.train_state.barrier()
        if context.writes:
            context.released(progress.global_step, context.log.last_save)

    def snapshot(self, progress: TrainPosition) -> None:
        """No effect: this strategy keeps no snapshots in memory."""

    def flush(self) -> None:
        """No effect: nothing is ever in flight."""

    def confirm(self, global_step: int) -> None:
        if self._context.writes:
            self._context.log.confirm(global_step, curable=False)

    def close(self) -> None:
        if self._slot is not None:
            self._slot.close()
            self._slot = None
        self._store.close()

    def _write(self, progress: TrainPosition, gathered: RankStates) -> None:
        context, step = self._context, progress.global_step
        context.clock.switch("snapshot")
        slot = self._ready(gathered)
        parts, train = context.capture(slot, progress, gathered)
        image = CheckpointImage(context.stamp(progress), slot.memory.view, parts, {TRAIN: train})
        context.clock.switch("write_wait")
        context.submitted(step, image.nbytes, inflight=1)
        context.log.write("received", step)
        save_and_record(self._store, image, context.attempt, context.log)
        context.raise_if_save_failed()

    def _ready(self, gathered: RankStates) -> StagingBuffer:
        """The staging buffer, made anew if the state's structure has changed."""
        snapshotter = self._context.snapshotter
        layout = snapshotter.refresh(gathered)
        if self._slot is None or self._slot.layout != layout:
            if self._slot is not None:
                self._slot.close()
            self._slot = StagingBuffer(
                Memory.create(layout.nbytes), layout, self._context.train_state.device
            )
        return self._slot
