"""The strategy without checkpoints: the baseline that the overhead of the others is measured
against.
"""

from __future__ import annotations

from typing import Self

from ecrl_cli.checkpoint.format.train_document import TrainPosition
from ecrl_cli.checkpoint.strategies.strategy import StrategyInputs


class NoneStrategy:
    """Does nothing."""

    @classmethod
    def make(cls, inputs: StrategyInputs) -> Self:
        return cls()

    def prepare(self) -> None: ...

    def save(self, progress: TrainPosition) -> None: ...

    def snapshot(self, progress: TrainPosition) -> None: ...

    def flush(self) -> None: ...

    def confirm(self, global_step: int) -> None: ...

    def close(self) -> None: ...
