"""The readings of one clock: of many lines they stay columns, until one is to be looked at."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ecrl_cli.records.columns import Floats, RankColumns
from ecrl_cli.verify.rank_spans import APART_S

EARLIEST = 1_704_067_200.0  # 2024-01-01: earlier than any possible recording
_NEARLY = 1 - 1e-9  # of a limit, so that rounding does not exceed it


@dataclass(frozen=True)
class Instant:
    """One reading of both clocks.

    `process`: which process read them; `what`: a description of the record; `until`: when that
    process was over at the latest, so that it cannot have read the second clock later. `loose`:
    work lies between the two readings (in a rank's line its digests), on a busy machine more than
    APART_S.
    """

    at: float
    time: float
    process: tuple[int, int | str]
    what: str
    until: float = float("inf")
    loose: bool = False

    @property
    def offset(self) -> float:
        """Wall clock minus monotonic clock: constant throughout a boot."""
        return self.time - self.at


@dataclass(frozen=True)
class LineReadings:
    """The readings on a log's lines. Fields as in `Instant`; `who`: the attempt and rank, as
    text.
    """

    columns: RankColumns
    process: tuple[int, int | str]
    who: str
    until: float = float("inf")
    loose: bool = False

    def instants(self, rows: slice = slice(None)) -> Iterator[Instant]:
        """One by one, in the order of the file."""
        columns = self.columns
        for step, at, time in zip(
            columns.global_step[rows].tolist(),
            columns.at[rows].tolist(),
            columns.time[rows].tolist(),
            strict=True,
        ):
            yield Instant(
                at, time, self.process, f"step {step} of {self.who}", self.until, self.loose
            )

    def last_before(self, at: float, count: int) -> Iterator[Instant]:
        """At least the last `count` before `at`."""
        if (np.diff(self.columns.at) < 0).any():
            return self.instants()
        stop = bisect_left(self.columns.at, at)
        return self.instants(slice(max(0, stop - count), stop))


@dataclass
class ClockReadings:
    """All readings of one clock, in the order in which they are looked at."""

    parts: list[Instant | LineReadings] = field(default_factory=list)

    def instants(self) -> list[Instant]:
        """One by one."""
        instants: list[Instant] = []
        for part in self.parts:
            instants += [part] if isinstance(part, Instant) else part.instants()
        return instants

    def last_before(self, at: float, count: int) -> list[Instant]:
        """The last `count` before `at`, in order of time."""
        instants: list[Instant] = []
        for part in self.parts:
            instants += [part] if isinstance(part, Instant) else part.last_before(at, count)
        before = [instant for instant in instants if instant.at < at]
        return sorted(before, key=lambda instant: instant.at)[-count:]

    def agree(self, slew: float) -> bool:
        """Whether any two readings show the same offset of the wall clock from the monotonic one:
        within APART_S of a line that rises or falls by less than `slew`. Then none of them was read
        late, and the clock was not set. False also if the wall clock had not been set at all.
        """
        ats, times = self._column("at"), self._column("time")
        if not len(ats):
            return True
        if times.min() < EARLIEST or not np.isfinite(ats).all():
            return False
        offsets = times - ats
        if np.ptp(offsets) <= APART_S * _NEARLY:
            return True
        first, last = ats.argmin(), ats.argmax()
        rise = (offsets[last] - offsets[first]) / max(ats[last] - ats[first], 1e-9)
        straight = offsets - rise * (ats - ats[first])
        return bool(abs(rise) <= slew * _NEARLY and np.ptp(straight) <= APART_S * _NEARLY)

    def _column(self, name: str) -> Floats:
        of_lines = [
            getattr(part.columns, name) for part in self.parts if isinstance(part, LineReadings)
        ]
        alone = [getattr(part, name) for part in self.parts if isinstance(part, Instant)]
        return np.concatenate([*of_lines, np.array(alone, dtype=np.float64)])
