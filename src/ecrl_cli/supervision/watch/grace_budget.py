"""Warns, once and early, if a last checkpoint does not fit into the grace period of a stop."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence

from ecrl_cli.errors import RecordError
from ecrl_cli.records.events import CheckpointLine, RankLine
from ecrl_cli.records.journal import read_journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import Progress
from ecrl_cli.supervision.attempts.checkpoint_reconciliation import lines

RECENT = 100  # steps


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
        """Check with the first of `attempts` that saved anything. Unreadable records are skipped: the code that depends on them reports them."""
        for attempt in attempts:
            with contextlib.suppress(RecordError):
                if (save := last_save_s(self._layout, attempt)) is not None:
                    self._done = True
                    if (said := shortfall(self._grace_s, longest_step_s(self._layout, attempt), save)) is not None:
                        self._tell(said)
                    return


def shortfall(grace_s: float, step_s: float, save_s: float) -> str | None:
    """The warning if `grace_s` is shorter than the current step and its checkpoint may take; None otherwise."""
    if grace_s >= step_s + save_s:
        return None
    takes = f"a step takes {step_s:.1f} s and a save {save_s:.1f} s"
    return f"supervision.grace_s={grace_s:g} is too short: {takes}, SIGTERM would lose the last checkpoint; raise it to {math.ceil(step_s + save_s)}"


def last_save_s(layout: RunLayout, attempt: int) -> float | None:
    """Seconds from the submission of the last committed checkpoint to its acknowledgement, with its snapshot; None if there was none."""
    began: dict[int, CheckpointLine] = {}
    last = None
    for line in lines(layout, attempt):
        if line.event == "submitted":
            began[line.global_step] = line
        elif line.event == "committed" and line.global_step in began:
            last = line.at - began[line.global_step].at + began[line.global_step].snapshot_s
    return last


def longest_step_s(layout: RunLayout, attempt: int) -> float:
    """The longest of rank 0's last RECENT steps, in seconds, without the attempt's first, which warms up; 0 if there is none."""
    steps = read_journal(layout.attempt(attempt).rank(0), RankLine).events[1:]
    return max((line.seconds for line in steps[-RECENT:]), default=0.0)
