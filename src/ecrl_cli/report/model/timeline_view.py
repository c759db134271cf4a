"""The data of a run's timeline, in seconds of the goodput clock: attempts, categories, progress, checkpoints in flight, failures.

Thinned to what a figure can show.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ecrl_cli.history.load import RunRecords
from ecrl_cli.history.timeline import Timeline, TimelineSlice, phases, timeline
from ecrl_cli.metrics.disk import DiskRate, rates
from ecrl_cli.records.events import CHECKPOINT_ENDS, Attempt, DiskLine, SupervisorSession
from ecrl_cli.report.figures.palette import FAMILY_OF

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
    """A checkpoint from its submission to its end; `outcome`: committed, failed, lost, or open if no end is recorded."""

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


@dataclass(frozen=True)
class TimelineView:
    """One run's timeline. `absent_s`: seconds between two supervisors, not on the clock. `disk`: disk activity, if sampled."""

    wall_s: float
    absent_s: float
    target_steps: int
    bands: tuple[TimeBand, ...]
    attempts: tuple[AttemptView, ...]
    writes: tuple[WriteBar, ...]
    faults: tuple[FaultMark, ...]
    disk: tuple[DiskRate, ...] = ()


def timeline_view(records: RunRecords, disk: Sequence[DiskLine] = (), account: Timeline | None = None) -> TimelineView:
    """The timeline of `records` and of the lines of disk.jsonl; ValueError without supervisor.json. `account`: the time account, if known."""
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
        _strips(account.pieces, account.wall_s, at),
        tuple(_attempt(records, a, at, account.wall_s, starts.get(a.attempt, {})) for a in supervisor.attempts),
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
    """(attempt, monotonic time) -> seconds of the goodput clock, which is stopped between two supervisors."""
    session_of = {a.attempt: a.session for a in attempts}
    before = [sum(end - start for start, end in windows[:number]) for number in range(len(windows))]

    def at(attempt: int, instant: float) -> float:
        session = session_of.get(attempt, 0)
        start, end = windows[session]
        return before[session] + min(max(instant, start), end) - start

    return at


def disk_rates(lines: Sequence[DiskLine], sessions: Sequence[SupervisorSession], windows: Sequence[tuple[float, float]]) -> tuple[DiskRate, ...]:
    """The disk rates within each supervisor session, on the goodput clock. Where monotonic times of two boots overlap, wall time decides."""
    mine: list[list[DiskLine]] = [[] for _ in windows]
    for line in lines:
        around = [number for number, (start, end) in enumerate(windows) if start <= line.at <= end]
        if around:
            of_boot = [abs((line.time - sessions[n].time) - (line.at - sessions[n].started_at)) for n in around]
            mine[around[of_boot.index(min(of_boot))]].append(line)
    found, before = list[DiskRate](), 0.0
    for (start, end), inside in zip(windows, mine, strict=True):
        thin = thinned(sorted(inside, key=lambda line: line.at), max(2, DISK_POINTS // len(windows)))
        found += [replace(rate, start=before + rate.start - start, end=before + rate.end - start) for rate in rates(thin)]
        before += end - start
    return tuple(found)


def _strips(pieces: Sequence[TimelineSlice], wall_s: float, at: At) -> tuple[TimeBand, ...]:
    """The family with the most time in each of BINS bins, neighbours of one family merged."""
    if not pieces or wall_s <= 0:
        return ()
    width = wall_s / BINS
    held: list[dict[str, float]] = [{} for _ in range(BINS)]
    for piece in pieces:
        _pour(held, FAMILY_OF[piece.category], at(piece.attempt, piece.start) / width, at(piece.attempt, piece.end) / width)
    strips: list[TimeBand] = []
    for number, shares in enumerate(held):
        family = max(shares, key=lambda name: shares[name], default="rest")
        if strips and strips[-1].family == family:
            strips[-1] = TimeBand(strips[-1].start, (number + 1) * width, family)
        else:
            strips.append(TimeBand(number * width, (number + 1) * width, family))
    return tuple(strips)


def _pour(held: list[dict[str, float]], family: str, start: float, end: float) -> None:
    """Distributes the span `start` to `end` (in bins) over the bins it overlaps."""
    number = int(start)
    while start < end and number < len(held):
        until = min(end, number + 1)
        held[number][family] = held[number].get(family, 0.0) + until - start
        start, number = until, number + 1


def _attempt(records: RunRecords, a: Attempt, at: At, wall_s: float, starts: dict[str, float]) -> AttemptView:
    lines = records.logs(a.attempt).ranks.get(0)
    progress = tuple((at(a.attempt, line.at), line.global_step) for line in thinned(lines.events, POINTS)) if lines else ()
    end = wall_s if a.ended_at is None else at(a.attempt, a.ended_at)
    return AttemptView(a, at(a.attempt, a.launched_at), end, progress, starts)


def _writes(records: RunRecords, at: At, wall_s: float) -> list[WriteBar]:
    found = []
    for a in records.attempt_logs:
        ends = {line.global_step: line for line in a.checkpoints.events if line.event in CHECKPOINT_ENDS}
        for line in a.checkpoints.events:
            if line.event == "submitted":
                end = ends.get(line.global_step)
                until = at(a.attempt, end.at) if end else wall_s
                found.append(WriteBar(at(a.attempt, line.at), until, line.global_step, end.event if end else "open"))
    return found
