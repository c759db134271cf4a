"""A contiguous account of one rank's time."""

from __future__ import annotations

from ecrl_cli.linux.clock import monotonic
from ecrl_cli.records.events import Span
from ecrl_cli.records.journal import Journal


class SpanClock:
    """Switches between categories without a gap: every instant since `start` belongs to exactly one
    span.

    `duration(category)` sums the seconds spent in it since `mark()`; `lap()` returns all sums and
    starts new ones at the same instant.
    """

    def __init__(self, journal: Journal, attempt: int, start: float, category: str) -> None:
        self._journal, self._attempt = journal, attempt
        self._start, self._category = start, category
        self._since_mark: dict[str, float] = {}
        self._marked_at = start
        self._global_step = 0

    @property
    def global_step(self) -> int:
        """The step being worked on. A new step begins a new span: no span covers two steps, because
        replay is recognized by step.
        """
        return self._global_step

    @global_step.setter
    def global_step(self, step: int) -> None:
        if step != self._global_step:
            self._close(monotonic())
            self._global_step = step

    @property
    def category(self) -> str:
        """Category of the current span."""
        return self._category

    def switch(self, category: str) -> float:
        """End the running span now and begin one of `category`; returns the instant."""
        now = monotonic()
        if category != self._category:
            self._close(now)
            self._category = category
        return now

    def mark(self) -> None:
        """Start new sums for `duration`."""
        self.lap()

    def lap(self) -> tuple[float, dict[str, float]]:
        """Seconds since `mark()`, and how many of them were spent in each category (they add up).
        Starts new sums.
        """
        now = monotonic()
        self._close(now)
        seconds, spent = now - self._marked_at, self._since_mark
        self._marked_at, self._since_mark = now, {}
        return seconds, spent

    def duration(self, category: str) -> float:
        """Seconds of `category` in spans closed since `mark()`."""
        return self._since_mark.get(category, 0.0)

    def close(self) -> None:
        """End the running span."""
        self._close(monotonic())

    def _close(self, now: float) -> None:
        if now > self._start:
            self._journal.append(
                Span(self._category, self._start, now, self._attempt, self._global_step)
            )
            self._since_mark[self._category] = (
                self._since_mark.get(self._category, 0.0) + now - self._start
            )
        self._start = now
