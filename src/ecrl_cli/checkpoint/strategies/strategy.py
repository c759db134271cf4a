"""The interface of a checkpoint strategy. All ranks call it; only rank 0 writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ecrl_cli.checkpoint.capture.train_position import TrainPosition


class Strategy(Protocol):
    """Used by the train loop in this order: prepare once, snapshot and save at each trigger, flush before a planned end, close.

    Its class has `make(inputs: StrategyInputs)`, which makes the strategy that a `StrategyKind` (config/strategies.py) names, for one rank.

    Each call is collective: every rank makes it at the same step. Its time is recorded in the span clock's categories.
    """

    def prepare(self) -> None:
        """Plan and allocate the memory of a snapshot; called after the first step of an attempt, when the optimizer has its state."""

    def save(self, progress: TrainPosition) -> None:
        """Barrier, capture, hand over or write, barrier. A failed write is logged; it raises only with checkpoint.on_error=stop."""

    def snapshot(self, progress: TrainPosition) -> None:
        """Copy the state into memory that survives the ranks, but not their supervisor; no effect except with in_memory."""

    def flush(self) -> None:
        """Return when every submitted checkpoint is committed or failed."""

    def confirm(self, global_step: int) -> None:
        """After flush: raise if `global_step` was submitted in this attempt and is not committed. StorageError if storage failed;
        EcrlError, which a restart may cure, if the writer died. Only rank 0 raises, which ends the attempt."""

    def close(self) -> None:
        """Release memory and connections, without waiting for checkpoints in flight."""
