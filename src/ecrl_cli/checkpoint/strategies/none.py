"""No checkpoints: for the arm without failures that prices the others."""

from __future__ import annotations

from ecrl_cli.checkpoint.capture.train_position import TrainPosition


class NoneStrategy:
    """Does nothing, at no cost."""

    def prepare(self) -> None: ...

    def save(self, progress: TrainPosition) -> None: ...

    def snapshot(self, progress: TrainPosition) -> None: ...

    def flush(self) -> None: ...

    def confirm(self, global_step: int) -> None: ...

    def close(self) -> None: ...
