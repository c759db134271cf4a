"""Decides from a run's records, not its plan, whether it was undisturbed."""

from __future__ import annotations

from itertools import count, pairwise
from operator import eq

from ecrl_cli.errors import plural
from ecrl_cli.failures.plan import plan
from ecrl_cli.history.lineage import began_initially, lineage, steps_of
from ecrl_cli.history.load import RunRecords
from ecrl_cli.records.events import Attempt

ENDED_WELL = ("completed", "resized")


def disturbance(records: RunRecords) -> str:
    """The first event that interrupted the run, or that keeps its records from showing an
    uninterrupted run; empty if there is none.

    Planned changes of the world size do not count. A fault that killed nothing (a slow rank, a full
    disk) does: its effect on the state is what the comparison with a reference must show.
    """
    attempts = records.attempts
    if not attempts:
        return "no attempt is on record"
    if records.fired:
        return (
            f"{plural(len(records.fired), 'failure')} fired, the first in attempt"
            f" {records.fired[0].attempt}"
        )
    on_record = {a.attempt for a in attempts}
    for logs in records.attempt_logs:
        if logs.attempt not in on_record and logs.ranks:
            return f"attempt {logs.attempt} left logs and is not in supervisor.json"
    for a in attempts:
        if reason := _interruption(records, a, last=a is attempts[-1]):
            return reason
    return _gap(records, attempts)


def uninterrupted(records: RunRecords) -> bool:
    """Whether the run can serve as a reference: nothing planned, nothing fired, and its steps done
    without interruption from the first.

    An interrupted earlier attempt does not matter if nothing of it was reused: the last attempt
    began with step 1. A run that was continued rests on the code that a reference is to check.
    """
    if (
        records.fired
        or records.supervisor is None
        or records.stored.config.continued_at
        or plan(records.stored.config)
    ):
        return False
    path = lineage(records)
    done = {segment.attempt for segment in path.segments}
    attempts = [a for a in records.attempts if a.attempt in done]
    whole = bool(attempts) and all(
        not _interruption(records, a, last=a is attempts[-1]) for a in attempts
    )
    return whole and not _gap(records, tuple(attempts))


def _interruption(records: RunRecords, a: Attempt, *, last: bool) -> str:
    """How `a` ended or began differently from an undisturbed run's attempt; empty if it did not."""
    who = f"attempt {a.attempt}"
    if a.outcome not in ENDED_WELL and not (last and a.outcome == "running"):
        return f"{who} {a.outcome}"
    if a.outcome in ENDED_WELL and (a.exit_code or a.signal is not None):
        return f"{who} {a.outcome} with exit code {a.exit_code}, signal {a.signal}"
    if a.hang or a.rejected or a.forgone:
        return f"{who} " + ("hung" if a.hang else "refused a checkpoint or a snapshot")
    if a.continues is not None or a.memory or records.logs(a.attempt).survivor_reports:
        return f"{who} went on from memory"
    return ""


def _gap(records: RunRecords, attempts: tuple[Attempt, ...]) -> str:
    """Where an attempt does not follow the previous one, or a log skips steps; empty if neither
    happens.
    """
    path = lineage(records)
    if path.gaps:
        return path.gaps[0]
    given = began_initially(records, attempts[0])
    if not given and (attempts[0].resumed_from is not None or attempts[0].resumed_from_step):
        return f"attempt {attempts[0].attempt} began after step {attempts[0].resumed_from_step}"
    for before, after in pairwise(attempts):
        if after.resumed_from_step != before.last_step:
            return (
                f"attempt {after.attempt} began after step {after.resumed_from_step}, attempt"
                f" {before.attempt} reached step {before.last_step}"
            )
    for a in attempts:
        for rank, lines in records.logs(a.attempt).ranks.items():
            if not all(map(eq, steps_of(lines), count(a.resumed_from_step + 1))):
                return (
                    f"the log of rank {rank} in attempt {a.attempt} does not go from step to step"
                )
    return ""
