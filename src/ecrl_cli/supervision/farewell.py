"""How an attempt is stopped because a person, or a scheduler, asked for it: with a last checkpoint where there is time for one."""

from __future__ import annotations

import signal
from collections.abc import Callable

from ecrl_cli.records.board import PHASES, Board
from ecrl_cli.supervision.signals import StopSignals

ECHO_S = 1.0
_STEPPING = PHASES.index("forward")


class Farewell:
    """The first signal asks the ranks to stop behind a step that they agree on, and to save it; the second, or `grace_s` after the first,
    ends everything at once. So does the first where no rank hears it, where nothing is saved, or before the ranks have begun to step, unless
    they have in memory (`carried`) what a new start would not find.

    One request may arrive several times: a wrapper passes on what a scheduler sends to everyone, and a terminal says twice that it closes. So
    nothing within ECHO_S of the first is the second, and SIGHUP never is. Ranks on another machine have no board: a run on several nodes stops
    at once. `tell`: one line for a person.
    """

    def __init__(
        self, stop: StopSignals, board: Board | None, grace_s: float, tell: Callable[[str], None] = lambda line: None, carried: bool = False
    ) -> None:
        self._stop, self._board, self._grace_s, self._tell, self._carried = stop, board, grace_s, tell, carried
        self._asked_at: float | None = None
        self._echoes = 0

    def over(self, now: float) -> bool:
        """Whether the attempt is to end at once."""
        received = self._stop.received()
        if not received:
            return False
        if self._asked_at is None:
            if self._board is None or self._grace_s <= 0 or not (self._carried or stepping(self._board)):
                return True
            self._board.ask_to_stop()
            self._asked_at = now
            self._tell(f"asked to stop: a last checkpoint is made first, within {self._grace_s:g} s; asked again, the run ends at once")
        if now - self._asked_at < ECHO_S:
            self._echoes = len(received)
        again = any(number != signal.SIGHUP for number in received[self._echoes :])
        return again or now - self._asked_at >= self._grace_s

    def left_s(self, now: float) -> float | None:
        """Until the time is over; None while nobody has asked."""
        return None if self._asked_at is None else max(0.0, self._asked_at + self._grace_s - now)


def stepping(board: Board) -> bool:
    """Whether rank 0, which chooses the step to stop behind, is past its start."""
    return PHASES.index(board.read(0).phase) >= _STEPPING
