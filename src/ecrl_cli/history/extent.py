"""Limits the work that a run's records claim, in proportion to the log lines that exist.

An honest run has a line for every step and rank. Records that claim a hundred million steps but hold fifty lines would cost hours and all
memory, so they are rejected before anything loops over the claimed range. An honest run with missing logs stays far below these limits.
"""

from __future__ import annotations

from ecrl_cli.config.elastic import fits
from ecrl_cli.errors import RecordError, plural
from ecrl_cli.history.lineage import lineage
from ecrl_cli.history.load import RunRecords

FREE = 300_000  # rank-steps that may be claimed without any line
PER_LINE = 32  # rank-steps per existing line: an honest run has one line each, apart from replayed ones, and is checked for every world size it had
SAMPLES_FREE, SAMPLES_PER_LINE = 2**27, 2**16


def check_extent(records: RunRecords) -> None:
    """RecordError if the committed sequence, or the sample order up to it, is out of proportion to the existing lines."""
    logs = [lines.events for a in records.attempt_logs for lines in a.ranks.values()]
    lines, path = sum(map(len, logs)), lineage(records)
    claimed = sum(len(segment.steps()) * max(segment.world_size, 1) for segment in path.segments)
    reach = min(max([path.last_step, 1, *(line.global_step for log in logs for line in log)]), records.stored.config.target_steps)
    claimed = max(claimed, reach * sum(_sizes(records)))
    if claimed > FREE + PER_LINE * lines:
        fact = f"claims {plural(claimed, 'step')} of ranks up to step {reach}, its logs hold {plural(lines, 'line')}"
        raise RecordError("supervisor.json", fact, "restore the records")
    if records.dataset and (batch := records.stored.config.global_batch) <= records.dataset.size:
        epochs = (reach - 1) // (records.dataset.size // max(batch, 1)) + 1
        if epochs * records.dataset.size > SAMPLES_FREE + SAMPLES_PER_LINE * lines:
            fact = f"claims {epochs} epochs of {plural(records.dataset.size, 'sample')}, the logs hold {plural(lines, 'line')}"
            raise RecordError("dataset.json", fact, "restore the records")


def _sizes(records: RunRecords) -> set[int]:
    """Every world size that the records name and that can share the batch."""
    named = {a.world_size for a in records.attempts} | {
        line.world_size for a in records.attempt_logs for lines in a.ranks.values() for line in lines.events
    }
    return {size for size in named if size > 0 and fits(records.stored.config, size)}
