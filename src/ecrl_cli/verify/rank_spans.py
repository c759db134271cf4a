"""The spans of all ranks, and where on a rank's account an instant stands."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from ecrl_cli.errors import RecordError
from ecrl_cli.history.load import RunRecords
from ecrl_cli.records.events import Span
from ecrl_cli.records.journal import read_journal

ROUNDING_S = 1e-6  # floating point: what is compared was computed from the same clock readings


@dataclass(frozen=True)
class SpanAccount:
    """The spans of one rank in one attempt, in the order of the file."""

    spans: tuple[Span, ...]

    @cached_property
    def _starts(self) -> list[float]:
        return [span.start for span in self.spans]

    @property
    def start(self) -> float:
        return self.spans[0].start

    @property
    def end(self) -> float:
        return self.spans[-1].end

    def index_at(self, instant: float) -> int | None:
        """Which span covers `instant`; None outside of all. Where two touch, the later one."""
        found = bisect_right(self._starts, instant + ROUNDING_S) - 1
        return found if found >= 0 and instant <= self.spans[found].end + ROUNDING_S else None

    def covering(self, instant: float) -> tuple[Span, ...]:
        """The spans that hold `instant`: one, two where it is the instant at which they touch, or none."""
        found = self.index_at(instant)
        if found is None:
            return ()
        before = self.spans[found - 1 : found] if found and self.spans[found].start >= instant - ROUNDING_S else ()
        return (*before, self.spans[found])

    def between(self, start: float, end: float) -> Iterator[Span]:
        """The spans that share more than an instant with `start` .. `end`."""
        for span in self.spans[max(0, bisect_right(self._starts, start) - 1) :]:
            if span.start >= end - ROUNDING_S:
                return
            if span.end > start + ROUNDING_S:
                yield span

    @cached_property
    def step_starts(self) -> dict[int, float]:
        """By step, where its first span starts."""
        found: dict[int, float] = {}
        for span in self.spans:
            found.setdefault(span.global_step, span.start)
        return found


@dataclass(frozen=True)
class RankSpans:
    """By (attempt, rank), of those that left any. `unread`: files that are there and cannot be read, with the reason."""

    accounts: dict[tuple[int, int], SpanAccount]
    unread: tuple[str, ...] = field(default=())

    def of(self, attempt: int, rank: int) -> SpanAccount | None:
        return self.accounts.get((attempt, rank))


def read_spans(records: RunRecords) -> RankSpans:
    """Those of rank 0 are loaded with the run; the others' serve the judge alone."""
    accounts, unread = {}, []
    for logs in records.attempts:
        paths = records.layout.attempt(logs.attempt)
        for rank in paths.spanned():
            events = logs.spans.events
            if rank:
                try:
                    events = read_journal(paths.spans(rank), Span).events
                except (RecordError, OSError) as error:
                    unread.append(f"{records.layout.relative(paths.spans(rank))} cannot be read: {error}")
                    continue
            if events:
                accounts[logs.attempt, rank] = SpanAccount(events)
    return RankSpans(accounts, tuple(unread))
