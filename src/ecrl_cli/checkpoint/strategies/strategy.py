"""How a snapshot becomes a checkpoint: the interface that every strategy keeps. All ranks call it; only rank 0 writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ecrl_cli.checkpoint.capture.train_position import TrainPosition


class Strategy(Protocol):
    """Used by the step loop in this order: prepare once, remember and save at each trigger, flush before a planned end, close.

    Its class has `make(inputs: StrategyInputs)`, by which a `StrategyKind` (config/strategies.py) is turned into one for a rank.

    Each call is collective: every rank makes it at the same step. Time goes to the span clock's categories.
    """

    def prepare(self) -> None:
        """Plan and touch the memory a snapshot needs; after the first step of an attempt, when the optimizer has its state."""

    def save(self, progress: TrainPosition) -> None:
        """Barrier, capture, hand over or write, barrier. A failed write is on record and does not raise."""

    def snapshot(self, progress: TrainPosition) -> None:
        """Keep the state where the death of ranks cannot reach it, though that of their supervisor can; of no effect but with in_memory."""

    def flush(self) -> None:
        """Return when everything submitted has ended as committed or failed."""

    def confirm(self, global_step: int) -> None:
        """After flush: raise if `global_step` was submitted in this attempt and is not committed. StorageError where storage refused;
        an error that a restart may cure where the writer died. Only rank 0 knows, and its end is the end of the attempt."""

    def close(self) -> None:
        """Give back memory and connections; does not wait."""
