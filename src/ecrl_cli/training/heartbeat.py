"""A rank's own slot on the board: where it is, for whoever watches it; and the word to stop, for all ranks behind the same step."""

from __future__ import annotations

from ecrl_cli.linux.clock import monotonic
from ecrl_cli.records.heartbeat_table import HeartbeatTable


class HeartbeatWriter:
    """`board` None: on another machine than its supervisor, a rank is not watched and not asked."""

    def __init__(self, board: HeartbeatTable | None, rank: int) -> None:
        self._table, self._rank = board, rank
        self._global_step, self._phase = 0, "nowhere"
        self._own_s, self._worked_s = 0.0, 0.0
        self._since: float | None = None

    def step(self, global_step: int) -> None:
        """The rank begins to work on `global_step`."""
        self._global_step, self._worked_s = global_step, 0.0
        self.work()
        self.phase("forward")

    def phase(self, phase: str) -> None:
        """One of `board.PHASES`."""
        if phase == "backward":
            self.wait()
            self._own_s = self._worked_s
        self._phase = phase
        self.again()

    def work(self) -> None:
        """From here to `wait`, or to the backward pass, the rank does its own work, and waits for nobody."""
        self._since = monotonic()

    def wait(self) -> None:
        """From here to `work` it may be waiting for others."""
        if self._since is not None:
            self._worked_s += monotonic() - self._since
            self._since = None

    def again(self) -> None:
        """Still in the same phase, and getting on with it."""
        if self._table is not None:
            self._table.write(self._rank, self._global_step, self._phase, self._own_s)

    def stop_behind(self, global_step: int) -> int | None:
        """The step behind which all ranks stop, or None. Every rank asks at each boundary, `global_step` being done; rank 0 chooses the next.

        Nobody can pass that step without having seen the word: it was written before rank 0 gave any gradient of it away.
        """
        if self._table is None:
            return None
        if self._rank == 0 and self._table.agreed is None and self._table.stop_asked:
            self._table.agree(global_step + 1)
        return self._table.agreed
