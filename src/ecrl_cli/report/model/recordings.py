"""Which recording a run directory holds: the same one, copied, counts once."""

from __future__ import annotations

from dataclasses import dataclass

from ecrl_cli.history.load import RunRecords
from ecrl_cli.records.fingerprint import fingerprint


@dataclass(frozen=True)
class Recording:
    """`start`: boot, monotonic and wall time at which the first supervisor began. `content`: the fingerprint of all records."""

    run_id: str
    start: tuple[str, float, float]
    content: str


def recording_of(records: RunRecords) -> Recording | None:
    """Which recording the run is: by its first supervisor's start, which no two of them share."""
    sessions = records.supervisor.sessions if records.supervisor else ()
    if not sessions:
        return None
    first = sessions[0]
    return Recording(records.stored.run_id, (first.boot_id, first.started_at, first.time), fingerprint(records.layout))
