"""A rank's slot in the heartbeat table: its step and phase for the hang detector, and the agreed stop step."""

from __future__ import annotations

from ecrl_cli.linux.clock import monotonic
from ecrl_cli.records.heartbeat_table import HeartbeatTable


class HeartbeatWriter:
    """`board` None: the supervisor is on another machine, so the rank is not watched and cannot be asked to stop."""

    def __init__(self, board: HeartbeatTable | None, rank: int) -> None:
        self._table, self._rank = board, rank
        self._global_step, self._phase = 0, "nowhere"
        self._own_s, self._worked_s = 0.0, 0.0
        self._since: float | None = None

    def step(self, global_step: int) -> None:
        """Begin work on `global_step`."""
        self._global_step, self._worked_s = global_step, 0.0
        self.work()
        self.phase("forward")

    def phase(self, phase: str) -> None:
        """Enter `phase`, one of `heartbeat_table.PHASES`."""
        if phase == "backward":
            self.wait()
            self._own_s = self._worked_s
        self._phase = phase
        self.again()

    def work(self) -> None:
        """Start counting the rank's own work, until `wait` or the backward pass: it waits for no other rank."""
        self._since = monotonic()

    def wait(self) -> None:
        """Stop counting, until `work`: the rank may be waiting for others."""
        if self._since is not None:
            self._worked_s += monotonic() - self._since
            self._since = None

    def again(self) -> None:
        """Write a heartbeat in the current phase: the rank makes progress."""
        if self._table is not None:
            self._table.write(self._rank, self._global_step, self._phase, self._own_s)

    def stop_behind(self, global_step: int) -> int | None:
        """The step after which all ranks stop, or None. Every rank calls it after each step; rank 0 answers a stop request with the next step.

        No rank can pass that step unaware: rank 0 writes it before it contributes any gradient of that step.
        """
        if self._table is None:
            return None
        if self._rank == 0 and self._table.agreed is None and self._table.stop_asked:
            self._table.agree(global_step + 1)
        return self._table.agreed
