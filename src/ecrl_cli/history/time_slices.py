"""Slices of a run's wall time, as columns where there are as many as spans."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from ecrl_cli.records.columns import CATEGORY_PLACES, ColumnLines, Floats, Numbers
from ecrl_cli.records.events import CATEGORIES


@dataclass(frozen=True)
class TimelineSlice:
    """`start` to `end` (monotonic seconds) was spent in `category`; `step` is 0 outside of any
    step.

    `attempt`: the one that spent it; idle time counts for the following attempt.
    """

    category: str
    start: float
    end: float
    attempt: int
    session: int
    step: int = 0


@dataclass(frozen=True, eq=False)
class SliceColumns:
    """Slices in their order. Fields as in `TimelineSlice`, but for `category`: its place in
    CATEGORIES.
    """

    category: npt.NDArray[np.int8]
    start: Floats
    end: Floats
    attempt: Numbers
    session: Numbers
    step: Numbers

    def __len__(self) -> int:
        return len(self.start)

    def lines(self, start: int, stop: int) -> Sequence[TimelineSlice]:
        return self.chosen(slice(start, stop))

    def chosen(self, rows: slice | npt.NDArray[np.bool_]) -> list[TimelineSlice]:
        """The slices of some places, in their order."""
        columns = [getattr(self, field.name)[rows].tolist() for field in fields(self)]
        categories = [CATEGORIES[place] for place in columns[0]]
        return [TimelineSlice(*values) for values in zip(categories, *columns[1:], strict=True)]

    def among(self, categories: Collection[str]) -> npt.NDArray[np.bool_]:
        """Which slices are of one of the categories."""
        return np.isin(
            self.category, [CATEGORY_PLACES[name] for name in categories if name in CATEGORY_PLACES]
        )

    def seconds(self) -> dict[str, float]:
        """The seconds of each category: added one by one, as a sum over all slices is."""
        total = dict.fromkeys(CATEGORIES, 0.0)
        for place, category in enumerate(CATEGORIES):
            rows = self.category == place
            if rows.any():
                parts = np.stack((self.end[rows], -self.start[rows]), axis=1)
                total[category] = float(np.cumsum(parts)[-1])
        return total

    def overlap(self, tolerance_s: float) -> bool:
        """Whether two slices of a session overlap."""
        order = np.lexsort((self.end, self.start, self.session))
        session, start, end = self.session[order], self.start[order], self.end[order]
        return bool(((session[1:] == session[:-1]) & (start[1:] < end[:-1] - tolerance_s)).any())


def joined(parts: Sequence[TimelineSlice | SliceColumns]) -> Sequence[TimelineSlice]:
    """The slices of all parts one after the other: with columns if some parts are columns, and all
    categories are known.
    """
    alone = [part for part in parts if isinstance(part, TimelineSlice)]
    if len(alone) == len(parts):
        return tuple(alone)
    if not all(one.category in CATEGORY_PLACES for one in alone):
        every = slice(None)
        groups = (
            [part] if isinstance(part, TimelineSlice) else part.chosen(every) for part in parts
        )
        return tuple(one for group in groups for one in group)
    blocks = [_of_one(part) if isinstance(part, TimelineSlice) else part for part in parts]
    names = [field.name for field in fields(SliceColumns)]
    return ColumnLines(
        SliceColumns(
            *(np.concatenate([getattr(block, name) for block in blocks]) for name in names)
        )
    )


def _of_one(piece: TimelineSlice) -> SliceColumns:
    whole = [np.array([number]) for number in (piece.attempt, piece.session, piece.step)]
    return SliceColumns(
        np.array([CATEGORY_PLACES[piece.category]], dtype=np.int8),
        np.array([piece.start], dtype=np.float64),
        np.array([piece.end], dtype=np.float64),
        *whole,
    )
