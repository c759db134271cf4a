"""The overlapped strategy: barrier, capture, enqueue, barrier. A background process writes while
the ranks compute.

The training thread pays for gathering the RNG states, one memory copy and a small message; with
checkpoint.capture=deferred (`deferral`) only for a copy of what changes in the next forward pass.
At most `max_inflight` checkpoints are in flight, one per staging buffer; the next one waits for a
free buffer (backpressure).
"""

from __future__ import annotations

from typing import Self

from ecrl_cli.checkpoint.capture.staging_buffer import BufferLayout, StagingBuffer
from ecrl_cli.checkpoint.capture.train_state import RankStates
from ecrl_cli.checkpoint.format.image import CheckpointImage
from ecrl_cli.checkpoint.format.names import TRAIN
from ecrl_cli.checkpoint.format.train_document import NOWHERE, TrainPosition
from ecrl_cli.checkpoint.strategies.strategy import StrategyContext, StrategyInputs
from ecrl_cli.checkpoint.writer.client import WriterClient, WriterGone
from ecrl_cli.errors import StorageError


class OverlappedStrategy:
    """Rank 0 copies into shared memory that the writer owns. Without a writer a save fails, is
    logged, and the next one tries to connect again.
    """

    def __init__(self, context: StrategyContext, max_inflight: int) -> None:
        self._context, self._max_inflight = context, max_inflight
        self._client: WriterClient | None = None
        self._planned: BufferLayout | None = None
        self._deferral = context.deferral() if context.defers else None

    @classmethod
    def make(cls, inputs: StrategyInputs) -> Self:
        return cls(inputs.context(), inputs.config.checkpoint.max_inflight)

    def prepare(self) -> None:
        gathered = self._context.train_state.gather(NOWHERE)
        if self._context.writes:
            self._planned = self._context.snapshotter.refresh(gathered)
            self._client = self._connected(self._planned)

    def save(self, progress: TrainPosition) -> None:
        self._raise_if_save_failed()
        context = self._context
        context.clock.switch("sync")
        gathered = context.train_state.gather(progress)
        context.clock.mark()
        if context.writes:
            self._enqueue(progress, gathered)
            context.clock.switch("sync")
        context.train_state.barrier()
        if context.writes:
            context.released(progress.global_step)

    def snapshot(self, progress: TrainPosition) -> None:
        """No effect: this strategy keeps no snapshots in memory."""

    def flush(self) -> None:
        """Wait until the writer has finished every submitted checkpoint. If it dies meanwhile, the
        supervisor reconciles the log.
        """
        if self._client is not None:
            self._context.clock.switch("write_wait")
            if self._deferral is not None:
                self._deferral.confirm_copy()
            try:
                self._client.wait_idle()
            except WriterGone:
                self._drop()
        self._raise_if_save_failed()

    def confirm(self, global_step: int) -> None:
        if self._context.writes:
            self._context.log.confirm(global_step, curable=self._client is None)

    def close(self) -> None:
        if self._deferral is not None:
            self._deferral.end()
        if self._client is not None:
            self._client.close()
            self._client = None

    def _enqueue(self, progress: TrainPosition, gathered: RankStates) -> None:
        context, step = self._context, progress.global_step
        context.clock.switch("backpressure")
        if self._deferral is not None:
            # if no update has followed the last checkpoint (a skipped one), the writer still holds
            # its buffer
            self._deferral.confirm_copy()
        try:
            client = self._ready(gathered)
            number, slot = client.take()
            later = self._deferral.later(context.snapshotter.found, step) if self._deferral else {}
            parts, train = context.capture(slot, progress, gathered, later)
            context.clock.switch("enqueue")
            logged = progress.state_digest if later else ""
            image = CheckpointImage(
                context.stamp(progress), slot.memory.view, parts, {TRAIN: train}, logged
            )
            deferred_bytes, reason = (
                sum(tensor.nbytes for tensor in later.values()),
                (self._deferral.reason if self._deferral else ""),
            )
            context.submitted(step, image.nbytes, client.in_flight + 1, deferred_bytes, reason)
        except WriterGone as gone:
            context.clock.switch("enqueue")  # what was spent so far is known to the line
            context.submitted(step, 0, 1, reason=str(gone) if self._deferral else "")
            self._failed(step, gone)
            return
        try:
            client.submit(
                number, image, self._deferral.changes if self._deferral and later else None
            )
        except WriterGone as gone:
            self._failed(step, gone)

    def _failed(self, step: int, gone: WriterGone) -> None:
        self._context.log.failed(
            step,
            StorageError("writer", str(gone), "a new writer is looked for at the next checkpoint"),
        )
        self._drop()
        self._raise_if_save_failed()

    def _raise_if_save_failed(self) -> None:
        """StorageError if a save has failed, here or in the writer, and checkpoint.on_error is
        stop.
        """
        self._hear_failure()
        self._context.raise_if_save_failed()

    def _hear_failure(self) -> None:
        if self._client is not None:
            self._context.log.failure = self._context.log.failure or self._client.failure

    def _ready(self, gathered: RankStates) -> WriterClient:
        """The connection to the writer, made anew if the writer has ended or the state's structure
        has changed. WriterGone if there is no writer.
        """
        layout = self._context.snapshotter.refresh(gathered)
        if self._client is not None and self._client.gone:
            self._drop()
        if self._client is not None and layout != self._planned:
            self._client.wait_idle()
            self._drop()
        if self._client is None:
            self._planned, self._client = layout, self._connected(layout)
            if self._client is None:
                raise WriterGone("there is no background writer")
        return self._client

    def _connected(self, layout: BufferLayout) -> WriterClient | None:
        context, client = self._context, None
        try:
            client = self._new_client(layout)
            client.open(context.attempt, layout.nbytes, self._max_inflight, layout.plan.parts)
            if self._deferral is not None:
                self._deferral.begin(client, context.snapshotter.found)
        except WriterGone:
            if client is not None:
                client.close()
            return None
        return client

    def _new_client(self, layout: BufferLayout) -> WriterClient:
        context, device = self._context, self._context.train_state.device
        if device.type == "cuda":
            # a run on the CPU does without it
            from ecrl_cli.checkpoint.strategies.deferral_gpu import gpu_client

            return gpu_client(context.layout, layout, device, context.log)
        return WriterClient(context.layout, lambda memory: StagingBuffer(memory, layout, device))

    def _drop(self) -> None:
        self._hear_failure()
        if self._client is not None:
            self._client.close()
            self._client = None
