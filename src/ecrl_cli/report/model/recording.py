"""The identity of a recording, which its copies share."""

from __future__ import annotations

from dataclasses import dataclass

from ecrl_cli.history.load import RunRecords
from ecrl_cli.records.digests import fingerprint


@dataclass(frozen=True)
class RecordingId:
    """`start`: boot id, monotonic and wall time of the first supervisor's start. `content`: the
    fingerprint of all records.
    """

    run_id: str
    start: tuple[str, float, float]
    content: str


def recording_of(records: RunRecords) -> RecordingId | None:
    """Identifies the recording by the start of its first supervisor, which is unique; None if there
    is none.
    """
    if not records.sessions:
        return None
    first = records.sessions[0]
    return RecordingId(
        records.stored.run_id,
        (first.boot_id, first.started_at, first.time),
        fingerprint(records.layout),
    )
