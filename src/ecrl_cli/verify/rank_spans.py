"""The spans of all ranks, with lookup by instant."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

import numpy as np

from ecrl_cli.errors import RecordError
from ecrl_cli.history.load import RunRecords
from ecrl_cli.records.columns import SpanColumns, read_log, span_columns
from ecrl_cli.records.events import CATEGORIES, Span

# The values compared are sums and differences of the same clock readings, so they differ only by
# rounding: a sum of some ten numbers of up to 10^7 s (the clock of a machine that has been up for
# months) is exact to 10^-7 s, whatever the load.
ROUNDING_S = 1e-6
# how far the monotonic and the wall clock may differ at one instant: both are read within
# microseconds
APART_S = 0.05


@dataclass(frozen=True)
class SpanAccount:
    """The spans of one rank in one attempt, in the order of the file."""

    spans: Sequence[Span]

    @property
    def columns(self) -> SpanColumns | None:
        return span_columns(self.spans)

    @cached_property
    def _starts(self) -> Sequence[float]:
        if self.columns is not None:
            return cast("Sequence[float]", self.columns.start)
        return [span.start for span in self.spans]

    @property
    def start(self) -> float:
        return self.spans[0].start

    @property
    def end(self) -> float:
        return self.spans[-1].end

    def index_at(self, instant: float) -> int | None:
        """The index of the span that covers `instant`; None outside of all. At a boundary, the
        later span.
        """
        found = bisect_right(self._starts, instant + ROUNDING_S) - 1
        return found if found >= 0 and instant <= self.spans[found].end + ROUNDING_S else None

    def covering(self, instant: float) -> tuple[Span, ...]:
        """The spans that contain `instant`: one, two at a boundary, or none."""
        found = self.index_at(instant)
        if found is None:
            return ()
        before = (
            self.spans[found - 1 : found]
            if found and self.spans[found].start >= instant - ROUNDING_S
            else ()
        )
        return (*before, self.spans[found])

    def of_steps(self, steps: Iterable[int]) -> Iterator[Span]:
        """The spans of any of `steps`, in the order of the file."""
        columns = self.columns
        if columns is None or not columns.ordered:
            yield from (span for span in self.spans if span.global_step in steps)
            return
        for step in sorted(set(steps)):
            yield from columns.lines(*np.searchsorted(columns.global_step, (step, step + 1)))

    def of_category(self, category: str) -> Sequence[Span]:
        """The spans of a category, in the order of the file."""
        if self.columns is None:
            return [span for span in self.spans if span.category == category]
        rows = np.flatnonzero(self.columns.category == CATEGORIES.index(category)).tolist()
        return [self.spans[row] for row in rows]

    def between(self, start: float, end: float) -> Iterator[Span]:
        """The spans that overlap `start` .. `end` by more than an instant."""
        first = max(0, bisect_right(self._starts, start) - 1)
        for index in range(first, len(self.spans)):
            span = self.spans[index]
            if span.start >= end - ROUNDING_S:
                return
            if span.end > start + ROUNDING_S:
                yield span

    @cached_property
    def step_starts(self) -> dict[int, float]:
        """By step, the start of its first span."""
        found: dict[int, float] = {}
        for span in self.spans:
            found.setdefault(span.global_step, span.start)
        return found


@dataclass(frozen=True)
class RankSpans:
    """By (attempt, rank), for ranks that left spans. `unread`: files that cannot be read, with the
    reason.
    """

    accounts: dict[tuple[int, int], SpanAccount]
    unread: tuple[str, ...] = field(default=())

    def of(self, attempt: int, rank: int) -> SpanAccount | None:
        return self.accounts.get((attempt, rank))


def read_spans(records: RunRecords) -> RankSpans:
    """Rank 0's spans are already loaded with the run; those of other ranks are read here, for
    verification only.
    """
    accounts, unread = {}, []
    for logs in records.attempt_logs:
        paths = records.layout.attempt(logs.attempt)
        for rank in paths.spanned():
            lines = logs.spans
            path = paths.spans(rank)
            if records.cut and path not in records.cut:
                continue
            if rank:
                try:
                    lines = read_log(
                        path, Span, until=records.cut.size(path) if records.cut else None
                    )
                except (RecordError, OSError) as error:
                    unread.append(f"{records.layout.relative(path)} cannot be read: {error}")
                    continue
            if lines.events:
                accounts[logs.attempt, rank] = SpanAccount(lines.events)
    return RankSpans(accounts, tuple(unread))
