"""How an attempt is stopped because a person, or a scheduler, asked for it: with a last checkpoint where there is time for one."""

from __future__ import annotations

from collections.abc import Callable

from ecrl_cli.config.schema import RunConfig
from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.records.heartbeat_table import PHASES, HeartbeatTable
from ecrl_cli.supervision.attempts.stop_signals import StopSignals

_STEPPING = PHASES.index("forward")


class GracefulStop:
    """The first signal asks the ranks to stop behind a step that they agree on, and to save it; the second, or `grace_s` after the first,
    ends everything at once. So does the first where no rank hears it, where nothing is saved, or before the ranks have begun to step, unless
    they have in memory (`carried`) what a new start would not find. The grace is one, however many attempts it takes.

    Ranks on another machine have no board: a run on several nodes stops at once. `tell`: one line for a person.
    """

    def __init__(
        self, stop: StopSignals, board: HeartbeatTable | None, grace_s: float, tell: Callable[[str], None] = lambda line: None, carried: bool = False
    ) -> None:
        self._stop, self._heartbeats, self._grace_s, self._tell, self._carried = stop, board, grace_s, tell, carried
        self._asked = False

    def over(self, now: float) -> bool:
        """Whether the attempt is to end at once."""
        if not self._stop.received():
            return False
        left = self._left(now)
        if not self._asked:
            if self._heartbeats is None or self._grace_s <= 0 or not (self._carried or stepping(self._heartbeats)):
                return True
            self._heartbeats.ask_to_stop()
            self._asked = True
            self._tell(f"asked to stop: a last checkpoint is made first, within {left:.3g} s; asked again, the run ends at once")
        return self._stop.again() or left == 0

    def left_s(self, now: float) -> float | None:
        """Until the time is over; None while nobody has asked."""
        return self._left(now) if self._asked else None

    def _left(self, now: float) -> float:
        return max(0.0, self._stop.asked_at + self._grace_s - now)


def must_not_launch(stop: StopSignals, config: RunConfig, carried: bool) -> bool:
    """Whether no attempt is to begin any more: where one would carry what is nowhere else, and may save it, it is asked to stop instead."""
    saves = strategy_of(config).saves and config.supervision.grace_s > 0
    return bool(stop.received()) and (not (carried and saves) or stop.again())


def stepping(board: HeartbeatTable) -> bool:
    """Whether rank 0, which chooses the step to stop behind, is past its start."""
    return PHASES.index(board.read(0).phase) >= _STEPPING
