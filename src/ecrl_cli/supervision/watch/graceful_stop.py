"""How an attempt is stopped on request of a person or a scheduler: with a last checkpoint if there is time for one."""

from __future__ import annotations

from collections.abc import Callable

from ecrl_cli.config.schema import RunConfig
from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.records.heartbeat_table import PHASES, HeartbeatTable
from ecrl_cli.supervision.attempts.stop_signals import StopSignals

_STEPPING = PHASES.index("forward")


class GracefulStop:
    """The first signal asks the ranks to stop after a step that they agree on and to save it. A second request, or the end of `grace_s`, ends the
    attempt.

    The first signal ends it at once if the ranks cannot be asked (`board` is None: nothing is saved, or ranks are on other machines), if there
    is no grace period, or if they have not begun to step, unless they hold state in memory that is not saved (`carried`). The grace period
    counts from the first signal, however many attempts it spans. `tell`: prints one line for the user.
    """

    def __init__(
        self, stop: StopSignals, board: HeartbeatTable | None, grace_s: float, tell: Callable[[str], None] = lambda line: None, carried: bool = False
    ) -> None:
        self._stop, self._heartbeats, self._grace_s, self._tell, self._carried = stop, board, grace_s, tell, carried
        self._asked = False

    def over(self, now: float) -> bool:
        """Whether the attempt is to end now. Asks the ranks to stop if a signal has arrived."""
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
        """Seconds left of the grace period; None if the ranks have not been asked to stop."""
        return self._left(now) if self._asked else None

    def _left(self, now: float) -> float:
        return max(0.0, self._stop.asked_at + self._grace_s - now)


def must_not_launch(stop: StopSignals, config: RunConfig, carried: bool) -> bool:
    """Whether a stop signal forbids another attempt.

    False while survivors hold unsaved state (`carried`) that a last checkpoint can save: the attempt is launched and asked to stop. A second
    request forbids that too.
    """
    saves = strategy_of(config).saves and config.supervision.grace_s > 0
    return bool(stop.received()) and (not (carried and saves) or stop.again())


def stepping(board: HeartbeatTable) -> bool:
    """Whether rank 0, which chooses the step to stop after, has begun to step."""
    return PHASES.index(board.read(0).phase) >= _STEPPING
