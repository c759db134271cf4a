"""Rank 0's wall time from the supervisor's launch to the target, cut into slices of one category
each.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ecrl_cli.history.lineage import instants_of, seen_before
from ecrl_cli.history.load import AttemptRecords, RunRecords
from ecrl_cli.history.time_slices import SliceColumns, TimelineSlice, joined
from ecrl_cli.records.columns import ColumnLines, SpanColumns, span_columns
from ecrl_cli.records.events import CATEGORIES, Attempt, Span, SupervisorSession
from ecrl_cli.records.survivor_records import SURVIVED

# What a process does before it can train; not part of any step.
STARTUP = ("launch", "import", "rendezvous", "load", "warm_up")
PHASES = ("detect", "idle", *STARTUP)


@dataclass(frozen=True)
class Timeline:
    """The slices of a run's wall time.

    `pieces`: in order of time. `windows`: (start, end) of each supervisor session on the clock.
    `absent_s`: seconds between sessions, on no clock.
    """

    pieces: Sequence[TimelineSlice]
    windows: tuple[tuple[float, float], ...]
    absent_s: float

    @property
    def columns(self) -> SliceColumns | None:
        """The columns of the pieces, if they have any."""
        columns = self.pieces.columns if isinstance(self.pieces, ColumnLines) else None
        return columns if isinstance(columns, SliceColumns) else None

    @property
    def wall_s(self) -> float:
        """Seconds on the goodput clock."""
        return math.fsum(end - start for start, end in self.windows)

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by category."""
        if self.columns is not None:
            return self.columns.seconds()
        total = dict.fromkeys(CATEGORIES, 0.0)
        for piece in self.pieces:
            # a stranger's record may have another one
            total[piece.category] = total.get(piece.category, 0.0) + piece.end - piece.start
        return total

    @property
    def residual_s(self) -> float:
        """Wall time in no category; negative if time was counted twice."""
        return self.wall_s - math.fsum(self.seconds.values())

    def overlaps(self, tolerance_s: float = 1e-6) -> list[tuple[TimelineSlice, TimelineSlice]]:
        """Pairs of neighbouring slices that overlap."""
        if self.columns is not None and not self.columns.overlap(tolerance_s):
            return []
        ordered = sorted(self.pieces, key=lambda piece: (piece.session, piece.start, piece.end))
        neighbours = pairwise(ordered)
        return [
            (a, b)
            for a, b in neighbours
            if a.session == b.session and b.start < a.end - tolerance_s
        ]

    def stretches(self) -> Iterator[tuple[str, int, float, float]]:
        """Category, attempt, start and end of each slice."""
        columns = self.columns
        if columns is None:
            for piece in self.pieces:
                yield piece.category, piece.attempt, piece.start, piece.end
        else:
            yield from zip(
                (CATEGORIES[place] for place in columns.category.tolist()),
                columns.attempt.tolist(),
                columns.start.tolist(),
                columns.end.tolist(),
                strict=True,
            )

    def of_categories(self, categories: Collection[str]) -> Sequence[TimelineSlice]:
        """The slices of some categories, in order of time."""
        if self.columns is not None:
            return self.columns.chosen(self.columns.among(categories))
        return [piece for piece in self.pieces if piece.category in categories]

    def new_work(self, attempt: int, seen: int, beside: Collection[str]) -> float | None:
        """When `attempt` began to work on a step after `seen`: the first start of a slice that is
        of none of the categories `beside`.
        """
        columns = self.columns
        if columns is None:
            starts = [
                piece.start
                for piece in self.pieces
                if piece.attempt == attempt and piece.step > seen and piece.category not in beside
            ]
        else:
            rows = (columns.attempt == attempt) & (columns.step > seen) & ~columns.among(beside)
            starts = columns.start[rows].tolist()
        return min(starts, default=None)


def timeline(records: RunRecords) -> Timeline:
    """The timeline of the whole run; empty if supervisor.json is missing."""
    seen = seen_before(records)
    parts: list[TimelineSlice | SliceColumns] = []
    windows: list[tuple[float, float]] = []
    for number, session in enumerate(records.sessions):
        attempts = [a for a in records.attempts if a.session == number]
        end = _session_end(records, session, attempts)
        windows.append((session.started_at, end))
        parts += _session_pieces(records, attempts, (session.started_at, end), seen)
    return Timeline(joined(parts), tuple(windows), _absence(records.sessions, windows))


def phases(records: RunRecords, account: Timeline) -> dict[int, dict[str, float]]:
    """By attempt: seconds of each start-up phase, including the detection of the preceding death
    and the idle time after it.
    """
    found = {a.attempt: dict.fromkeys(PHASES, 0.0) for a in records.attempts}
    for piece in account.of_categories(PHASES):
        belongs = piece.attempt + 1 if piece.category == "detect" else piece.attempt
        # the first step warms up; a repeated first step counts as replay
        outside = piece.step == 0 or piece.category == "warm_up"
        if outside and belongs in found:
            found[belongs][piece.category] += piece.end - piece.start
    return found


def replays(account: Timeline) -> dict[int, tuple[int, float]]:
    """By attempt: how many steps it repeated, and their seconds; only attempts that repeated
    any.
    """
    steps: dict[int, set[int]] = {}
    seconds: dict[int, float] = {}
    for piece in account.of_categories(("replay",)):
        steps.setdefault(piece.attempt, set()).add(piece.step)
        seconds[piece.attempt] = seconds.get(piece.attempt, 0.0) + piece.end - piece.start
    return {attempt: (len(found), seconds[attempt]) for attempt, found in steps.items()}


def last_evidence(logs: AttemptRecords, records: RunRecords) -> float | None:
    """The last instant at which the attempt of `logs` is known to have run."""
    instants = [span.end for span in logs.spans.events] + [
        at for lines in logs.ranks.values() for at in instants_of(lines)
    ]
    instants += [entry.at for entry in records.fired if entry.attempt == logs.attempt] + (
        [logs.final.at] if logs.final else []
    )
    return max(instants, default=None)


def _session_end(records: RunRecords, session: SupervisorSession, attempts: list[Attempt]) -> float:
    """The instant the target was reached; else the supervisor's own end; else, if it was killed,
    the last evidence of its attempts.
    """
    finals = [final for final in (records.logs(a.attempt).final for a in attempts) if final]
    if finals:
        return finals[-1].at
    if session.ended_at is not None:
        return session.ended_at
    known = [last_evidence(records.logs(a.attempt), records) or a.launched_at for a in attempts]
    return max([session.started_at, *known])


def _session_pieces(
    records: RunRecords, attempts: list[Attempt], window: tuple[float, float], seen: dict[int, int]
) -> Iterator[TimelineSlice | SliceColumns]:
    session, (before, end) = attempts[0].session if attempts else 0, window
    for attempt in attempts:
        yield from _arrival(attempt, before, attempt.launched_at)
        pieces = list(_attempt_pieces(records, attempt, end, seen.get(attempt.attempt, 0)))
        yield from pieces
        before = (
            attempt.ended_at
            if attempt.ended_at is not None
            else max([float(np.max(piece.end)) for piece in pieces] + [attempt.launched_at])
        )
    if not (attempts and records.logs(attempts[-1].attempt).final):
        yield from _piece("idle", before, end, attempts[-1].attempt + 1 if attempts else 0, session)


def _attempt_pieces(
    records: RunRecords, attempt: Attempt, window_end: float, seen: int
) -> Iterator[TimelineSlice | SliceColumns]:
    """From the launch to the end of `attempt`: launch, rank 0's own spans up to the fault,
    detection (or idle if nothing died).

    The span open when rank 0 died is not on record: its time belongs to a step that was never
    committed and counts as detection too. A surviving rank 0 works on after the fault: what it does
    to commit a step counts as work; the rest, until the next attempt works, as detection.
    """
    logs, number, session = records.logs(attempt.attempt), attempt.attempt, attempt.session
    ended = min(window_end if attempt.ended_at is None else attempt.ended_at, window_end)
    died, survived = attempt.outcome in ("died", "hung", SURVIVED), attempt.outcome == SURVIVED
    left = logs.survivor_report.finished_step if survived and logs.survivor_report else -1
    injected_at = fatal_fault_instants(records, attempt) if died else []
    # the last of several faults: nothing follows the one that ends an attempt
    stop = min(ended, max(injected_at, default=ended))
    if logs.spans.events:
        first = logs.spans.events[0].start
        yield from _arrival(
            attempt, attempt.launched_at, first if survived else min(first, stop), "launch"
        )
    elif not any(lines.events for lines in logs.ranks.values()):
        yield from _arrival(attempt, attempt.launched_at, stop, "launch")
    columns, last = span_columns(logs.spans.events), _open_span(logs)
    if columns is not None and not survived:
        yield from _work(columns, attempt, stop, seen)
    for span in (*(() if columns is not None and not survived else logs.spans.events), *last):
        replay, until = (
            0 < span.global_step <= seen,
            min(span.end, ended if span.global_step <= left else stop),
        )
        yield from _piece(
            "replay" if replay else span.category,
            span.start,
            until,
            number,
            session,
            span.global_step,
        )
        if survived:
            yield from _piece(
                "detect", max(span.start, until), min(span.end, ended), number, session
            )
    if not logs.final:
        noticed_from = min(
            [
                ended if survived and logs.spans.events else stop,
                *(span.end for span in (*logs.spans.events[-1:], *last)[-1:]),
            ]
        )
        yield from _piece(
            "detect" if died else "idle",
            noticed_from,
            ended,
            number if died else number + 1,
            session,
        )


def _arrival(
    attempt: Attempt, start: float, end: float, otherwise: str = "idle"
) -> Iterator[TimelineSlice]:
    """The time before `attempt` could work; if its processes already existed, it counts as
    detection, since it was spent on a death.
    """
    if attempt.origins:
        yield from _piece("detect", start, end, attempt.attempt - 1, attempt.session)
    else:
        yield from _piece(otherwise, start, end, attempt.attempt, attempt.session)


def fatal_fault_instants(records: RunRecords, attempt: Attempt) -> list[float]:
    """The instants of faults after which the target rank did no further step: faults that only slow
    down or corrupt end nothing.
    """
    last = {
        rank: lines.events[-1].at
        for rank, lines in records.logs(attempt.attempt).ranks.items()
        if lines.events
    }
    fired = [
        entry
        for entry in records.fired
        if entry.attempt == attempt.attempt and entry.at >= attempt.launched_at
    ]
    return [entry.at for entry in fired if last.get(entry.rank, entry.at) <= entry.at]


def _work(spans: SpanColumns, attempt: Attempt, stop: float, seen: int) -> Iterator[SliceColumns]:
    """Rank 0's spans up to `stop`; those of steps up to `seen` are replay."""
    until = np.where(stop < spans.end, stop, spans.end)  # a stranger's `stop` may be NaN
    rows = until > spans.start
    steps = spans.global_step[rows]
    replay = (steps > 0) & (steps <= seen)
    if len(steps):
        yield SliceColumns(
            np.where(replay, CATEGORIES.index("replay"), spans.category[rows]).astype(np.int8),
            spans.start[rows],
            until[rows],
            np.full(len(steps), attempt.attempt),
            np.full(len(steps), attempt.session),
            steps,
        )


def _open_span(logs: AttemptRecords) -> tuple[Span, ...]:
    """If rank 0 died before closing the span of the last step that it logged, that step, taken from
    its line.
    """
    spans = logs.spans.events
    last = logs.ranks[0].events[-1] if 0 in logs.ranks and logs.ranks[0].events else None
    if not spans or not last or logs.final or last.at <= spans[-1].end:
        return ()
    start = max(spans[-1].end, last.at - last.seconds)
    return (Span("compute", start, last.at, logs.attempt, last.global_step),)


def _piece(
    category: str, start: float, end: float, attempt: int, session: int, step: int = 0
) -> Iterator[TimelineSlice]:
    if end > start:
        yield TimelineSlice(category, start, end, attempt, session, step)


def _absence(sessions: tuple[SupervisorSession, ...], windows: list[tuple[float, float]]) -> float:
    """Seconds between sessions: by the monotonic clock within one boot, by the wall clock across
    boots.
    """
    total = 0.0
    for i in range(len(sessions) - 1):
        before, after = sessions[i], sessions[i + 1]
        by_clock = after.started_at - windows[i][1]
        by_wall = after.time - (before.time + windows[i][1] - before.started_at)
        total += max(0.0, by_clock if before.boot_id == after.boot_id else by_wall)
    return total
