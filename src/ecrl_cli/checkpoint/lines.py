"""The lines of checkpoint_rank0.jsonl, as rank 0 and the writer put them down. Torch-free."""

from __future__ import annotations

from typing import Any

from ecrl_cli.checkpoint.store import Retired, Saved
from ecrl_cli.errors import EcrlError
from ecrl_cli.records.clock import monotonic, wall
from ecrl_cli.records.events import CheckpointLine
from ecrl_cli.records.journal import Journal
from ecrl_cli.records.layout import RunLayout


class CheckpointLog:
    """One attempt's checkpoint journal."""

    def __init__(self, journal: Journal, layout: RunLayout, attempt: int) -> None:
        self._journal, self._layout, self._attempt = journal, layout, attempt

    def write(self, event: str, global_step: int, **values: Any) -> None:
        self._journal.append(CheckpointLine(event, global_step, self._attempt, monotonic(), wall(), **values))

    def committed(self, global_step: int, saved: Saved) -> None:
        self.write(
            "committed",
            global_step,
            write_s=saved.write_s,
            commit_s=saved.commit_s,
            bytes=saved.bytes,
            path=self._layout.relative(saved.path),
            commit_sha256=saved.commit_sha256,
        )

    def failed(self, global_step: int, error: EcrlError) -> None:
        self.write("failed", global_step, reason=error.line())

    def retired(self, gone: tuple[Retired, ...]) -> None:
        for checkpoint in gone:
            self.write("retired", checkpoint.global_step, path=self._layout.relative(checkpoint.path), commit_sha256=checkpoint.commit_sha256)

    def close(self) -> None:
        self._journal.close()
