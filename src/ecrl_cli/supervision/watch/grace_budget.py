"""Whether a last checkpoint fits into the time that a stop leaves: said once, while there is time to do something about it."""

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
    """Compares `grace_s` with what the run has shown, as soon as it has shown it."""

    def __init__(self, layout: RunLayout, grace_s: float, tell: Callable[[str], None]) -> None:
        self._layout, self._grace_s, self._tell = layout, grace_s, tell
        self._done = grace_s <= 0

    def hear(self, progress: Progress) -> None:
        """A save begins: by now an earlier one of this attempt may have ended."""
        if progress.phase == "saving" and not self._done:
            self._weigh(self._layout.attempts()[-1:])

    def check(self) -> None:
        """At the newest attempt that saved anything."""
        if not self._done:
            self._weigh(self._layout.attempts()[::-1])

    def _weigh(self, attempts: Sequence[int]) -> None:
        """The first of them that saved anything; nothing is said of one whose records cannot be read: whoever needs them will."""
        for attempt in attempts:
            with contextlib.suppress(RecordError):
                if (save := last_save_s(self._layout, attempt)) is not None:
                    self._done = True
                    if (said := shortfall(self._grace_s, longest_step_s(self._layout, attempt), save)) is not None:
                        self._tell(said)
                    return


def shortfall(grace_s: float, step_s: float, save_s: float) -> str | None:
    """What to say where `grace_s` is too short for the step that is being done and its checkpoint; None where it is not."""
    if grace_s >= step_s + save_s:
        return None
    takes = f"a step takes {step_s:.1f} s and a save {save_s:.1f} s"
    return f"supervision.grace_s={grace_s:g} is too short: {takes}, SIGTERM would lose the last checkpoint; raise it to {math.ceil(step_s + save_s)}"


def last_save_s(layout: RunLayout, attempt: int) -> float | None:
    """From the hand-over of the last checkpoint that was committed to its acknowledgement; None where there was none."""
    began: dict[int, CheckpointLine] = {}
    last = None
    for line in lines(layout, attempt):
        if line.event == "submitted":
            began[line.global_step] = line
        elif line.event == "committed" and line.global_step in began:
            last = line.at - began[line.global_step].at + began[line.global_step].snapshot_s
    return last


def longest_step_s(layout: RunLayout, attempt: int) -> float:
    """Of the recent ones of rank 0, without the first of the attempt, which warms up; 0 where there is none."""
    steps = read_journal(layout.attempt(attempt).rank(0), RankLine).events[1:]
    return max((line.seconds for line in steps[-RECENT:]), default=0.0)
