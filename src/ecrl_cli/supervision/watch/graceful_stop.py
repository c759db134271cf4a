"""How an attempt is stopped on request of a person or a scheduler: with a last checkpoint if there
is time for one.

`GraceBudget` warns, once and early, if there will not be.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence

from ecrl_cli.config.schema import RunConfig
from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.errors import RecordError
from ecrl_cli.records.events import CheckpointLine, RankLine
from ecrl_cli.records.heartbeat_table import PHASES, HeartbeatTable
from ecrl_cli.records.journal import read_journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import Progress
from ecrl_cli.supervision.attempts.checkpoint_reconciliation import lines
from ecrl_cli.supervision.attempts.stop_signals import StopSignals

_STEPPING = PHASES.index("forward")

RECENT = 100  # steps


class GracefulStop:
    """The first signal asks the ranks to stop after a step that they agree on and to save it. A
    second request, or the end of `grace_s`, ends the attempt.

    The first signal ends it at once if the ranks cannot be asked (`board` is None: nothing is
    saved, or ranks are on other machines), if there is no grace period, or if they have not begun
    to step, unless they hold state in memory that is not saved (`carried`). The grace period counts
    from the first signal, however many attempts it spans. `tell`: prints one line for the user.
    """

    def __init__(
        self,
        stop: StopSignals,
        board: HeartbeatTable | None,
        grace_s: float,
        tell: Callable[[str], None] = lambda line: None,
        carried: bool = False,
    ) -> None:
        self._stop, self._heartbeats, self._grace_s, self._tell, self._carried = (
            stop,
            board,
            grace_s,
            tell,
            carried,
        )
        self._asked = False

    def over(self, now: float) -> bool:
        """Whether the attempt is to end now. Asks the ranks to stop if a signal has arrived."""
        if not self._stop.received():
            return False
        left = self._left(now)
        if not self._asked:
            if (
                self._heartbeats is None
                or self._grace_s <= 0
                or not (self._carried or stepping(self._heartbeats))
            ):
                return True
            self._heartbeats.ask_to_stop()
            self._asked = True
            self._tell(
                f"asked to stop: a last checkpoint is made first, within {left:.3g} s; asked again,"
                " the run ends at once"
            )
        return self._stop.again() or left == 0

    def left_s(self, now: float) -> float | None:
        """Seconds left of the grace period; None if the ranks have not been asked to stop."""
        return self._left(now) if self._asked else None

    def _left(self, now: float) -> float:
        return max(0.0, self._stop.asked_at + self._grace_s - now)


def must_not_launch(stop: StopSignals, config: RunConfig, carried: bool) -> bool:
    """Whether a stop signal forbids another attempt.

    False while survivors hold unsaved state (`carried`) that a last checkpoint can save: the
    attempt is launched and asked to stop. A second request forbids that too.
    """
    saves = strategy_of(config).saves and config.supervision.grace_s > 0
    return bool(stop.received()) and (not (carried and saves) or stop.again())


def stepping(board: HeartbeatTable) -> bool:
    """Whether rank 0, which chooses the step to stop after, has begun to step."""
    return PHASES.index(board.read(0).phase) >= _STEPPING


class GraceBudget:
    """Compares `grace_s` with the step and save times of the run, as soon as they are known."""

    def __init__(self, layout: RunLayout, grace_s: float, tell: Callable[[str], None]) -> None:
        self._layout, self._grace_s, self._tell = layout, grace_s, tell
        self._done = grace_s <= 0

    def hear(self, progress: Progress) -> None:
        """Check when a save begins: an earlier save of this attempt may have ended by then."""
        if progress.phase == "saving" and not self._done:
            self._weigh(self._layout.attempts()[-1:])

    def check(self) -> None:
        """Check with the newest attempt that saved anything."""
        if not self._done:
            self._weigh(self._layout.attempts()[::-1])

    def _weigh(self, attempts: Sequence[int]) -> None:
        """Check with the first of `attempts` that saved anything. Unreadable records are skipped:
        the code that depends on them reports them.
        """
        for attempt in attempts:
            with contextlib.suppress(RecordError):
                if (save := last_save_s(self._layout, attempt)) is not None:
                    self._done = True
                    if (
                        said := shortfall(
                            self._grace_s, longest_step_s(self._layout, attempt), save
                        )
                    ) is not None:
                        self._tell(said)
                    return


def shortfall(grace_s: float, step_s: float, save_s: float) -> str | None:
    """The warning if `grace_s` is shorter than the current step and its checkpoint may take; None
    otherwise.
    """
    if grace_s >= step_s + save_s:
        return None
    takes = f"a step takes {step_s:.1f} s and a save {save_s:.1f} s"
    return (
        f"supervision.grace_s={grace_s:g} is too short: {takes}, SIGTERM would lose the last"
        f" checkpoint; raise it to {math.ceil(step_s + save_s)}"
    )


def last_save_s(layout: RunLayout, attempt: int) -> float | None:
    """Seconds from the submission of the last committed checkpoint to its acknowledgement, with its
    snapshot; None if there was none.
    """
    began: dict[int, CheckpointLine] = {}
    last = None
    for line in lines(layout, attempt):
        if line.event == "submitted":
            began[line.global_step] = line
        elif line.event == "committed" and line.global_step in began:
            last = line.at - began[line.global_step].at + began[line.global_step].snapshot_s
    return last


def longest_step_s(layout: RunLayout, attempt: int) -> float:
    """The longest of rank 0's last RECENT steps, in seconds, without the attempt's first, which
    warms up; 0 if there is none.
    """
    steps = read_journal(layout.attempt(attempt).rank(0), RankLine).events[1:]
    return max((line.seconds for line in steps[-RECENT:]), default=0.0)
