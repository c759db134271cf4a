"""Every second of wall time is in exactly one category."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import cast

from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.errors import plural
from ecrl_cli.history.load import AttemptRecords
from ecrl_cli.records.columns import span_columns
from ecrl_cli.records.events import (
    CATEGORIES,
    CHECKPOINT_ENDS,
    COPY_WAIT,
    STALL_PARTS,
    CheckpointLine,
    Span,
)
from ecrl_cli.records.journal import Log
from ecrl_cli.verify.clocks import check_clocks
from ecrl_cli.verify.rank_spans import ROUNDING_S
from ecrl_cli.verify.span_columns import contiguous
from ecrl_cli.verify.spans import check_spans
from ecrl_cli.verify.verdict import Finding, FindingBuilder
from ecrl_cli.verify.verification_input import Case

PROMISE = "time-conserved"
MAX_RESIDUAL = 0.02  # of the wall time
_BESIDE = ("backpressure", "enqueue", COPY_WAIT)  # only if a background writer takes the snapshot
_INSIDE = ("write", "hash", "commit", "settle")  # only if the training thread writes


def time_conserved(case: Case) -> Finding:
    """Slices must not overlap, and the residual is limited; without rank 0's spans the promise is
    unknown.
    """
    notes = FindingBuilder(PROMISE)
    if case.run.supervisor is None or not case.run.supervisor.sessions:
        notes.missing("supervisor.json names no session: the wall time is not known")
        return notes.finding("")
    check_clocks(case, notes)
    check_spans(case, notes)
    if not _known_spans(case, notes):
        return notes.finding("")
    account = case.timeline
    for a, b in account.overlaps():
        which = f"{b.category} of attempt {b.attempt} (step {b.step})"
        notes.broken(
            f"{which} begins {a.end - b.start:.6f} s before the {a.category} before it ends:"
            " counted twice"
        )
    wall, residual = account.wall_s, account.residual_s
    if abs(residual) > MAX_RESIDUAL * wall:
        notes.broken(
            f"{residual:.3f} s of {wall:.3f} s wall time are on no account (allowed:"
            f" {MAX_RESIDUAL:.0%})"
        )
    stalls = _check_stalls(case, notes)
    apart = f", {account.absent_s:.3f} s without a supervisor apart" if account.absent_s else ""
    return notes.finding(f"{wall:.3f} s of wall time, residual {residual:.3f} s{apart}{stalls}")


def _known_spans(case: Case, notes: FindingBuilder) -> bool:
    """Whether every attempt that did steps left spans, all in known categories."""
    worked = {
        a.attempt for a in case.run.attempt_logs if any(lines.events for lines in a.ranks.values())
    }
    worked |= {a.attempt for a in case.attempts if a.last_step is not None}
    for number in sorted(worked):
        if not case.run.logs(number).spans.events:
            notes.missing(f"attempt {number} left no spans of rank 0")
    for a in case.run.attempt_logs:
        columns = span_columns(a.spans.events)
        for span in () if columns and contiguous(columns, a.attempt) else a.spans.events:
            if (
                span.category not in CATEGORIES
                or span.attempt != a.attempt
                or span.end < span.start
            ):
                notes.broken(
                    f"attempt {a.attempt} has a span that cannot be: {span.category} of attempt"
                    f" {span.attempt}, {span.start} to {span.end}"
                )
    return notes.clean


def _check_stalls(case: Case, notes: FindingBuilder) -> str:
    """Add what is wrong to `notes`; returns a description of what was checked."""
    foreign = _BESIDE if strategy_of(case.run.stored.config).writes_in_step else _INSIDE
    split = unsplit = 0
    for a in case.run.attempt_logs:
        ends = _ends(a.spans)
        released = [line for line in a.checkpoints.events if line.event == "released"]
        split += sum(bool(line.stall_parts) for line in released)
        unsplit += sum(not line.stall_parts for line in released)
        for line in released:
            if line.stall_parts and _add_up(line, notes):
                _check_part_names(line, foreign, notes)
                _check_beside(line, a, notes)
                _check_stall_spans(line, a.spans.events, ends, notes)
        for line in (line for line in a.checkpoints.events if line.event == "waited"):
            if line.stall_parts.keys() != {COPY_WAIT}:
                notes.broken(
                    f"{_who(line)} has {sorted(line.stall_parts)[:3]} as what was waited for after"
                    f" it, not {COPY_WAIT}"
                )
            elif _add_up(line, notes):
                _check_stall_spans(line, a.spans.events, ends, notes)
    if split and unsplit:
        notes.broken(
            f"the stalls of {unsplit} of"
            f" {plural(split + unsplit, 'checkpoint is', 'checkpoints are')} not split into parts,"
            " those of the others are"
        )
    if split:
        return f"; the parts of {split} stalls add up"
    return f"; how {unsplit} stalls are made up was not recorded" if unsplit else ""


def _who(line: CheckpointLine) -> str:
    return f"the stall of step {line.global_step} in attempt {line.attempt}"


def _add_up(line: CheckpointLine, notes: FindingBuilder) -> bool:
    """Whether the parts have known names and are nonnegative, and add up to the stall."""
    unknown = sorted(line.stall_parts.keys() - STALL_PARTS.keys())
    if unknown:
        notes.broken(f"{_who(line)} has a part {unknown[0][:40]!r}, which does not exist")
        return False
    bad = [
        name for name, seconds in line.stall_parts.items() if not -ROUNDING_S <= seconds < math.inf
    ]
    if bad:
        notes.broken(f"{_who(line)} has {line.stall_parts[bad[0]]} s of {bad[0]}")
        return False
    total = math.fsum(line.stall_parts.values())
    if not abs(total - line.stall_s) <= ROUNDING_S:
        notes.broken(f"{_who(line)} is {line.stall_s:.6f} s, its parts add up to {total:.6f} s")
        return False
    return True


def _check_part_names(
    line: CheckpointLine, foreign: tuple[str, ...], notes: FindingBuilder
) -> None:
    for name in (*foreign, COPY_WAIT):  # the latter is on a line of its own
        if line.stall_parts.get(name):
            notes.broken(
                f"{_who(line)} has {line.stall_parts[name]:.6f} s of {name}, which this strategy"
                " does not spend"
            )


def _check_beside(line: CheckpointLine, a: AttemptRecords, notes: FindingBuilder) -> None:
    """Other lines of the same checkpoint record some of the parts too: they must agree."""
    own = [other for other in a.checkpoints.events if other.global_step == line.global_step]
    submitted = next((other for other in own if other.event == "submitted"), None)
    end = next((other for other in own if other.event in CHECKPOINT_ENDS), None)
    recorded: dict[str, float] = {"enqueue": line.enqueue_s}
    if submitted:
        recorded |= {
            name: getattr(submitted, f"{name}_s")
            for name in ("snapshot", "serialize", "backpressure")
        }
    if end and any(name in line.stall_parts for name in _INSIDE):
        recorded |= {name: getattr(end, f"{name}_s") for name in ("write", "hash", "commit")}
    for name, seconds in recorded.items():
        part = line.stall_parts.get(name, 0.0)
        if not abs(part - seconds) <= ROUNDING_S:
            notes.broken(
                f"{_who(line)} has {part:.6f} s of {name}, the lines of that checkpoint say"
                f" {seconds:.6f} s"
            )


def _check_stall_spans(
    line: CheckpointLine, spans: Sequence[Span], ends: Sequence[float], notes: FindingBuilder
) -> None:
    """Rank 0's spans that end with the stall show the same seconds by category."""
    spent = _spent(line, spans, bisect_right(ends, line.at))
    if spent is None:
        # a machine that went down may have kept the line and lost the last spans
        note = notes.broken if len(ends) and ends[-1] > line.at else notes.missing
        note(f"{_who(line)} is {line.stall_s:.6f} s, and no spans of rank 0 before its end are")
        return
    recorded: dict[str, float] = {}
    for name, seconds in line.stall_parts.items():
        recorded[STALL_PARTS[name]] = recorded.get(STALL_PARTS[name], 0.0) + seconds
    for category in sorted({*recorded, *spent}):
        one, other = recorded.get(category, 0.0), spent.get(category, 0.0)
        if not abs(one - other) <= ROUNDING_S:
            notes.broken(
                f"{_who(line)} has {one:.6f} s in {category} by its parts, {other:.6f} s by the"
                " spans of rank 0"
            )


def _ends(spans: Log[Span]) -> Sequence[float]:
    columns = span_columns(spans.events)
    if columns is not None:
        return cast("Sequence[float]", columns.end)
    return [span.end for span in spans.events]


def _spent(line: CheckpointLine, spans: Sequence[Span], before: int) -> dict[str, float] | None:
    """Seconds by category of the last of the first `before` spans that together are as long as the
    stall; None if there are none such.

    The line is written right after the end of a span, before the next one ends.
    """
    found: dict[str, float] = {}
    for place in reversed(range(before)):
        span = spans[place]
        if spans[before - 1].end - span.end >= line.stall_s - ROUNDING_S:
            break
        found[span.category] = found.get(span.category, 0.0) + span.end - span.start
    return found if abs(math.fsum(found.values()) - line.stall_s) <= ROUNDING_S else None
