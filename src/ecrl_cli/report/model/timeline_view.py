"""A run's timeline, in seconds of the goodput clock: attempts, categories, progress, checkpoints in
flight, failures.

Thinned to what a figure can show. For the page it gives points and paths of SVG in boxes that
stretch with it, and the texts of their marks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ecrl_cli.history.lineage import instants_of, steps_of
from ecrl_cli.history.load import RunRecords
from ecrl_cli.history.timeline import Timeline, phases, timeline
from ecrl_cli.metrics.disk import DiskRate, rates
from ecrl_cli.records.events import CHECKPOINT_ENDS, Attempt, DiskLine, SupervisorSession
from ecrl_cli.report.formats import count, duration, plural
from ecrl_cli.report.palette import FAMILY_OF

BINS, POINTS, DISK_POINTS = 2400, 80, 1200

T = TypeVar("T")
At = Callable[[int, float], float]


@dataclass(frozen=True)
class TimeBand:
    """A time span in which one family of categories took the most time."""

    start: float
    end: float
    family: str


@dataclass(frozen=True)
class WriteBar:
    """A checkpoint from its submission to its end; `outcome`: committed, failed, lost, or open if
    no end is recorded.
    """

    start: float
    end: float
    step: int
    outcome: str


@dataclass(frozen=True)
class FaultMark:
    """A planned failure that was injected."""

    at: float
    step: int
    kind: str
    rank: int


@dataclass(frozen=True)
class AttemptView:
    """An attempt: its progress as (seconds, step), and the seconds of the phases of its start."""

    record: Attempt
    start: float
    end: float
    progress: tuple[tuple[float, int], ...]
    phases: dict[str, float]

    @property
    def text(self) -> str:
        """The attempt in one line."""
        r = self.record
        steps = (
            "no step"
            if r.first_step is None or r.last_step is None
            else f"steps {count(r.first_step)} to {count(r.last_step)}"
        )
        source = f", resumed from step {count(r.resumed_from_step)}" if r.resumed_from else ""
        return (
            f"attempt {r.attempt}: {steps} in {duration(self.end - self.start)}{source},"
            f" {r.outcome}"
        )


@dataclass(frozen=True)
class TimelineView:
    """One run's timeline. `absent_s`: seconds between two supervisors, not on the clock. `disk`:
    disk activity, if sampled.
    """

    wall_s: float
    absent_s: float
    target_steps: int
    bands: tuple[TimeBand, ...]
    attempts: tuple[AttemptView, ...]
    writes: tuple[WriteBar, ...]
    faults: tuple[FaultMark, ...]
    disk: tuple[DiskRate, ...] = ()

    def progress_lines(self, longest_s: float) -> list[tuple[AttemptView, str]]:
        """Each attempt with progress, and its SVG points in a box of 1000 x 100, y downwards;
        `longest_s` is the width of the box.
        """
        target = max(1, self.target_steps)
        lines = [
            (
                a,
                " ".join(
                    f"{1000 * t / longest_s:.1f},{100 - 100 * step / target:.1f}"
                    for t, step in a.progress
                ),
            )
            for a in self.attempts
        ]
        return [(attempt, line) for attempt, line in lines if line]

    def family_seconds(self, family: str) -> float:
        return math.fsum(strip.end - strip.start for strip in self.bands if strip.family == family)

    def family_paths(self, longest_s: float) -> dict[str, str]:
        """By family, its bands as one SVG path in a box of 10000 x 1."""
        paths: dict[str, str] = {}
        for strip in self.bands:
            paths[strip.family] = paths.get(strip.family, "") + _block(
                strip.start, strip.end, longest_s
            )
        return paths

    def write_path(self, longest_s: float) -> str:
        """The committed checkpoints, from submission to commit, as one SVG path in a box of 10000 x
        1; each at least wide enough to be visible.
        """
        least = longest_s / 300
        blocks = [
            (min(w.start, longest_s - least), max(w.end, w.start + least))
            for w in self.writes
            if w.outcome == "committed"
        ]
        return "".join(_block(start, min(end, longest_s), longest_s) for start, end in blocks)

    @property
    def durable_text(self) -> str:
        """The committed checkpoints in one line."""
        took = [write.end - write.start for write in self.writes if write.outcome == "committed"]
        return (
            f"{plural(len(took), 'durable checkpoint')}, {duration(math.fsum(took) / len(took))}"
            " each on average"
            if took
            else ""
        )

    @property
    def peak_tps(self) -> float:
        """The highest number of transfers per second."""
        return max((rate.tps for rate in self.disk), default=0.0)

    @property
    def disk_points(self) -> str:
        """Transfers per second as SVG points in a box of 1000 x 100, a step per interval."""
        most, wall_s = self.peak_tps or 1.0, self.wall_s
        return " ".join(
            f"{1000 * t / wall_s:.1f},{100 - 100 * rate.tps / most:.1f}"
            for rate in self.disk
            for t in (rate.start, rate.end)
        )


def timeline_view(
    records: RunRecords, disk: Sequence[DiskLine] = (), account: Timeline | None = None
) -> TimelineView:
    """The timeline of `records` and of the lines of disk.jsonl; ValueError without supervisor.json.
    `account`: the time account, if known.
    """
    supervisor = records.supervisor
    if supervisor is None:
        raise ValueError("no supervisor.json")
    account = account or timeline(records)
    at = _clock(supervisor.attempts, account.windows)
    starts = phases(records, account)
    return TimelineView(
        account.wall_s,
        account.absent_s,
        supervisor.target_steps,
        _bands(account, at),
        tuple(
            _attempt(records, a, at, account.wall_s, starts.get(a.attempt, {}))
            for a in supervisor.attempts
        ),
        tuple(_writes(records, at, account.wall_s)),
        tuple(FaultMark(at(f.attempt, f.at), f.global_step, f.kind, f.rank) for f in records.fired),
        disk_rates(disk, supervisor.sessions, account.windows),
    )


def recorded_at(sessions: Sequence[SupervisorSession]) -> float | None:
    """Wall time at which a run's first supervisor started."""
    return sessions[0].time if sessions else None


def thinned(points: Sequence[T], most: int) -> tuple[T, ...]:
    """Every k-th of `points`, at most about `most`, including the last."""
    stride = max(1, -(-len(points) // most))
    kept = list(points[::stride])
    return tuple(kept if not points or kept[-1] is points[-1] else [*kept, points[-1]])


def _clock(attempts: Sequence[Attempt], windows: Sequence[tuple[float, float]]) -> At:
    """(attempt, monotonic time) -> seconds of the goodput clock, which is stopped between two
    supervisors.
    """
    before = [sum(end - start for start, end in windows[:number]) for number in range(len(windows))]
    places = [(shift, *window) for shift, window in zip(before, windows, strict=True)]
    session_of = {a.attempt: a.session for a in attempts}

    def at(attempt: int, instant: float) -> float:
        shift, start, end = places[session_of.get(attempt, 0)]
        # called for every span, nearly all of which lie within
        inside = instant if start <= instant <= end else min(max(instant, start), end)
        return shift + inside - start

    return at


def disk_rates(
    lines: Sequence[DiskLine],
    sessions: Sequence[SupervisorSession],
    windows: Sequence[tuple[float, float]],
) -> tuple[DiskRate, ...]:
    """The disk rates within each supervisor session, on the goodput clock. Where monotonic times of
    two boots overlap, wall time decides.
    """
    mine: list[list[DiskLine]] = [[] for _ in windows]
    for line in lines:
        around = [number for number, (start, end) in enumerate(windows) if start <= line.at <= end]
        if around:
            of_boot = [
                abs((line.time - sessions[n].time) - (line.at - sessions[n].started_at))
                for n in around
            ]
            mine[around[of_boot.index(min(of_boot))]].append(line)
    found, before = list[DiskRate](), 0.0
    for (start, end), inside in zip(windows, mine, strict=True):
        thin = thinned(
            sorted(inside, key=lambda line: line.at), max(2, DISK_POINTS // len(windows))
        )
        found += [
            replace(rate, start=before + rate.start - start, end=before + rate.end - start)
            for rate in rates(thin)
        ]
        before += end - start
    return tuple(found)


def _bands(account: Timeline, at: At) -> tuple[TimeBand, ...]:
    """The family with the most time in each of BINS bins, neighbours of one family merged."""
    if not account.pieces or account.wall_s <= 0:
        return ()
    width = account.wall_s / BINS
    held: list[dict[str, float]] = [{} for _ in range(BINS)]
    for category, attempt, began, ended in account.stretches():
        family = FAMILY_OF[category]
        start, end = at(attempt, began) / width, at(attempt, ended) / width
        number = int(start)
        while start < end and number < BINS:
            until = end if end < number + 1 else number + 1
            shares = held[number]
            shares[family] = shares.get(family, 0.0) + until - start
            start, number = until, number + 1
    strips: list[TimeBand] = []
    for number, shares in enumerate(held):
        family = max(shares, key=shares.__getitem__, default="rest")
        if strips and strips[-1].family == family:
            strips[-1] = TimeBand(strips[-1].start, (number + 1) * width, family)
        else:
            strips.append(TimeBand(number * width, (number + 1) * width, family))
    return tuple(strips)


def _attempt(
    records: RunRecords, a: Attempt, at: At, wall_s: float, starts: dict[str, float]
) -> AttemptView:
    lines = records.logs(a.attempt).ranks.get(0)
    points = list(zip(instants_of(lines), steps_of(lines), strict=True)) if lines else []
    progress = tuple((at(a.attempt, instant), step) for instant, step in thinned(points, POINTS))
    end = wall_s if a.ended_at is None else at(a.attempt, a.ended_at)
    return AttemptView(a, at(a.attempt, a.launched_at), end, progress, starts)


def _writes(records: RunRecords, at: At, wall_s: float) -> list[WriteBar]:
    found = []
    for a in records.attempt_logs:
        ends = {
            line.global_step: line for line in a.checkpoints.events if line.event in CHECKPOINT_ENDS
        }
        for line in a.checkpoints.events:
            if line.event == "submitted":
                end = ends.get(line.global_step)
                until = at(a.attempt, end.at) if end else wall_s
                found.append(
                    WriteBar(
                        at(a.attempt, line.at),
                        until,
                        line.global_step,
                        end.event if end else "open",
                    )
                )
    return found


def ticks(longest_s: float, most: int = 6) -> list[float]:
    """Round times from 0 to `longest_s` seconds, at most `most` of them after 0."""
    if longest_s <= 0:
        return [0.0]
    power = 10 ** math.floor(math.log10(longest_s / most))
    step = next(power * factor for factor in (1, 2, 5, 10) if longest_s / (power * factor) <= most)
    return [step * number for number in range(int(longest_s / step) + 1)]


def _block(start: float, end: float, longest_s: float) -> str:
    left, right = round(10000 * start / longest_s), round(10000 * end / longest_s)
    return f"M{left} 0h{right - left}v1h{left - right}z"
