"""Goodput: committed steps over wall time, on ECRL's clock and on the published one."""

from __future__ import annotations

from ecrl_cli.history.lineage import Lineage, lineage
from ecrl_cli.history.load import RunRecords
from ecrl_cli.history.timeline import Timeline


def committed_steps(path: Lineage) -> int:
    """The number of steps in the committed sequence, each counted once."""
    return sum(len(segment.steps()) for segment in path.segments)


def goodput(path: Lineage, account: Timeline) -> float:
    """Committed steps per second of wall time from the supervisor's launch to the target; 0 if no time is on record."""
    return committed_steps(path) / account.wall_s if account.wall_s > 0 else 0.0


def goodput_published_clock(records: RunRecords) -> float | None:
    """Committed steps over the time from rank 0's first line to its last: the first launch is free, restarts are charged.

    The clock of the published artefact, for comparison only. None if rank 0 logged fewer than two lines or there was a reboot.
    """
    instants = [line.at for a in records.attempt_logs if 0 in a.ranks for line in a.ranks[0].events]
    boots = {session.boot_id for session in records.sessions}
    if len(instants) < 2 or len(boots) > 1 or max(instants) <= min(instants):
        return None
    return committed_steps(lineage(records)) / (max(instants) - min(instants))
