"""How far a run ended from its reference, as numbers for a report."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ecrl_cli.history.divergence import loss_divergence
from ecrl_cli.history.lineage import lineage, losses
from ecrl_cli.history.load import RunRecords

COMPONENTS = ("parameters", "buffers", "optimizer", "rng")


def divergence_document(run: RunRecords, reference: RunRecords) -> dict[str, Any]:
    """Losses over the committed sequences, and which components' final digests differ (None where a run has no final record)."""
    loss = loss_divergence(losses(run, lineage(run)), losses(reference, lineage(reference)))
    return {"reference_run_id": reference.stored.run_id, "loss": asdict(loss), "final_equal": _final_equal(run, reference)}


def _final_equal(run: RunRecords, reference: RunRecords) -> dict[str, bool] | None:
    a, b = run.final, reference.final
    if a is None or b is None or a.global_step != b.global_step:
        return None
    return {name: getattr(a, f"{name}_digest") == getattr(b, f"{name}_digest") for name in COMPONENTS}
