"""Promise 4: every second of wall time is in exactly one category."""

from __future__ import annotations

from ecrl_cli.history.timeline import timeline
from ecrl_cli.records.events import CATEGORIES
from ecrl_cli.verify.clocks import check_clocks
from ecrl_cli.verify.spans import check_spans
from ecrl_cli.verify.stalls import check_stalls
from ecrl_cli.verify.verdict import Finding, FindingBuilder
from ecrl_cli.verify.verification_input import Case

PROMISE = "time-conserved"
MAX_RESIDUAL = 0.02  # of the wall time


def time_conserved(case: Case) -> Finding:
    """Slices must not overlap, and the residual is limited; without rank 0's spans the promise is unknown."""
    notes = FindingBuilder(PROMISE)
    if case.run.supervisor is None or not case.run.supervisor.sessions:
        notes.missing("supervisor.json names no session: the wall time is not known")
        return notes.finding("")
    check_clocks(case, notes)
    check_spans(case, notes)
    if not _known_spans(case, notes):
        return notes.finding("")
    account = timeline(case.run)
    for a, b in account.overlaps():
        which = f"{b.category} of attempt {b.attempt} (step {b.step})"
        notes.broken(f"{which} begins {a.end - b.start:.6f} s before the {a.category} before it ends: counted twice")
    wall, residual = account.wall_s, account.residual_s
    if abs(residual) > MAX_RESIDUAL * wall:
        notes.broken(f"{residual:.3f} s of {wall:.3f} s wall time are on no account (allowed: {MAX_RESIDUAL:.0%})")
    stalls = check_stalls(case, notes)
    apart = f", {account.absent_s:.3f} s without a supervisor apart" if account.absent_s else ""
    return notes.finding(f"{wall:.3f} s of wall time, residual {residual:.3f} s{apart}{stalls}")


def _known_spans(case: Case, notes: FindingBuilder) -> bool:
    """Whether every attempt that did steps left spans, all in known categories."""
    for a in case.run.attempt_logs:
        worked = any(lines.events for lines in a.ranks.values())
        if worked and not a.spans.events:
            notes.missing(f"attempt {a.attempt} left no spans of rank 0")
        for span in a.spans.events:
            if span.category not in CATEGORIES or span.attempt != a.attempt or span.end < span.start:
                notes.broken(f"attempt {a.attempt} has a span that cannot be: {span.category} of attempt {span.attempt}, {span.start} to {span.end}")
    return notes.clean
