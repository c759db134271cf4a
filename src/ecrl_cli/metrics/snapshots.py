"""The cost of in-memory snapshots, from rank 0's spans."""

from __future__ import annotations

from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.history.load import AttemptRecords, RunRecords


def snapshots(records: RunRecords) -> dict[str, float]:
    """The `snapshots` object of metrics.json: how many steps had a snapshot and no checkpoint, and rank 0's seconds for them.

    `copy_s`: in the copy; `sync_s`: in the collective before it, mostly waiting for slower ranks, which the next step would wait for otherwise.
    Steps with both a snapshot and a submitted checkpoint are excluded: their costs cannot be separated.
    """
    taken, copy_s, sync_s = 0, 0.0, 0.0
    for attempt in records.attempt_logs if strategy_of(records.stored.config).snapshots else ():
        for copy, sync in _by_step(attempt).values():
            taken, copy_s, sync_s = taken + 1, copy_s + copy, sync_s + sync
    return {"taken": taken, "copy_s": copy_s, "sync_s": sync_s, "per_snapshot_s": (copy_s + sync_s) / taken if taken else 0.0}


def _by_step(attempt: AttemptRecords) -> dict[int, tuple[float, float]]:
    """Seconds of the copy and of the collective, by step."""
    saved = {line.global_step for line in attempt.checkpoints.events}
    spent: dict[int, dict[str, float]] = {}
    for span in attempt.spans.events:
        of_step = spent.setdefault(span.global_step, {})
        of_step[span.category] = of_step.get(span.category, 0.0) + span.end - span.start
    return {step: (of["snapshot"], of.get("sync", 0.0)) for step, of in spent.items() if "snapshot" in of and step not in saved}
