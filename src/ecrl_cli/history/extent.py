"""How much work the records of a run ask of whoever folds and judges them, against how much they hold.

An honest run has a line for every step and rank. Records that claim a hundred million steps and hold fifty lines would cost hours and all memory,
so they are refused before anything loops over what they claim. What is missing from an honest run's logs is far below these bounds.
"""

from __future__ import annotations

from ecrl_cli.config.elastic import fits
from ecrl_cli.errors import RecordError
from ecrl_cli.history.lineage import lineage
from ecrl_cli.history.load import RunRecords

FREE = 300_000  # steps of ranks that may be claimed without a line for any
PER_LINE = 32  # and for each line that there is: an honest run has one for each, replayed ones apart, and is looked at in every size that it had
SAMPLES_FREE, SAMPLES_PER_LINE = 2**27, 2**16


def check_extent(records: RunRecords) -> None:
    """RecordError where the committed sequence, or the order of the samples behind it, is out of all proportion to the lines there are."""
    logs = [lines.events for a in records.attempts for lines in a.ranks.values()]
    lines, path = sum(map(len, logs)), lineage(records)
    claimed = sum(len(segment.steps()) * max(segment.world_size, 1) for segment in path.segments)
    reach = min(max([path.last_step, 1, *(line.global_step for log in logs for line in log)]), records.stored.config.target_steps)
    claimed = max(claimed, reach * sum(_sizes(records)))
    if claimed > FREE + PER_LINE * lines:
        fact = f"claims {claimed} steps of ranks up to step {reach}, its logs hold {lines} lines"
        raise RecordError("supervisor.json", fact, "restore the records")
    if records.dataset and (batch := records.stored.config.global_batch) <= records.dataset.size:
        epochs = (reach - 1) // (records.dataset.size // max(batch, 1)) + 1
        if epochs * records.dataset.size > SAMPLES_FREE + SAMPLES_PER_LINE * lines:
            fact = f"claims {epochs} epochs of {records.dataset.size} samples, the logs hold {lines} lines"
            raise RecordError("dataset.json", fact, "restore the records")


def _sizes(records: RunRecords) -> set[int]:
    """Every number of ranks that the records name and that the batch can be shared among."""
    attempts = records.supervisor.attempts if records.supervisor else ()
    named = {a.world_size for a in attempts} | {line.world_size for a in records.attempts for lines in a.ranks.values() for line in lines.events}
    return {size for size in named if size > 0 and fits(records.stored.config, size)}
