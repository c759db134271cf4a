"""Comparisons of all spans and lines of a rank at once, over their columns: see `line_columns`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ecrl_cli.records.columns import RankColumns, SpanColumns
from ecrl_cli.records.events import CATEGORIES, RANK_CATEGORIES
from ecrl_cli.verify.rank_spans import ROUNDING_S

_COMPUTE = CATEGORIES.index("compute")
_OF_RANKS = [CATEGORIES.index(name) for name in RANK_CATEGORIES]


def contiguous(spans: SpanColumns, attempt: int) -> bool:
    """Whether each span has positive length and a category of ranks, and begins where the one
    before ended, in an order that can be searched.
    """
    return (
        spans.ordered
        and bool(np.isin(spans.category, _OF_RANKS).all())
        and bool((spans.attempt == attempt).all())
        and bool((spans.end > spans.start).all())
        and bool((np.abs(spans.start[1:] - spans.end[:-1]) <= ROUNDING_S).all())
    )


def lines_booked(lines: RankColumns, spans: SpanColumns, waits: set[float]) -> bool:
    """Whether each line lies in a span of computing its step that lasts from the step's beginning,
    but for the waits that begin at `waits`. The last line may lie behind all spans.
    """
    if not spans.ordered:
        return False
    inside = lines.at <= spans.end[-1] + ROUNDING_S
    if not inside[:-1].all():
        return False
    at, seconds, steps = lines.at[inside], lines.seconds[inside], lines.global_step[inside]
    here = np.searchsorted(spans.start, at + ROUNDING_S, "right") - 1
    if (here < 0).any() or (at > spans.end[here] + ROUNDING_S).any():
        return False
    computing = spans.category == _COMPUTE
    before = np.maximum(here - 1, 0)
    at_boundary = (here > 0) & (spans.start[here] >= at - ROUNDING_S)
    booked = (computing[here] & (spans.global_step[here] == steps)) | (
        at_boundary & computing[before] & (spans.global_step[before] == steps)
    )
    if not booked.all():
        return False
    other = ~computing
    if waits:
        other &= ~np.isin(spans.start, list(waits))
    others_before = np.concatenate(([0], np.cumsum(other)))
    begun = at - seconds
    first = np.maximum(
        np.searchsorted(spans.start, begun, "right") - 1,
        np.searchsorted(spans.end, begun + ROUNDING_S, "right"),
    )
    last = np.maximum(first, np.searchsorted(spans.start, at - ROUNDING_S, "left"))
    if (others_before[last] != others_before[first]).any():
        return False
    of_step = np.searchsorted(spans.global_step, steps, "left")
    return not (begun > spans.start[of_step] + ROUNDING_S).any()


def steps_booked(lines: RankColumns, spans: SpanColumns, began: int, last: int) -> bool:
    """Whether each span is of the last step that was logged before it, or the next one, up to
    `last`; or of step 0 before the first. `began`: the step that the attempt resumed after.
    """
    if not spans.ordered or (np.diff(lines.at) < 0).any():
        return False
    behind = np.searchsorted(lines.at, spans.start + ROUNDING_S, "right")
    done = np.concatenate(([began], lines.global_step))[behind]
    following = np.concatenate((lines.global_step, [lines.global_step[-1] + 1]))[behind]
    fits = (done <= spans.global_step) & (spans.global_step <= np.minimum(following, last))
    return bool((fits | ((spans.global_step == 0) & (behind == 0))).all())


def begun_together(ranks: Mapping[int, RankColumns]) -> bool:
    """Whether in each step no rank ended before all had begun it."""
    logs = [columns for columns in ranks.values() if len(columns)]
    if not logs:
        return True
    if not all(columns.consecutive for columns in logs):
        return False
    first = min(int(columns.global_step[0]) for columns in logs)
    steps = max(int(columns.global_step[-1]) for columns in logs) + 1 - first
    latest, earliest = np.full(steps, -np.inf), np.full(steps, np.inf)
    for columns in logs:
        start = int(columns.global_step[0]) - first
        part = slice(start, start + len(columns))
        np.maximum(latest[part], columns.at - columns.seconds, out=latest[part])
        np.minimum(earliest[part], columns.at, out=earliest[part])
    return not (latest > earliest + ROUNDING_S).any()
