"""The divergence of a run's end from its reference, as numbers for a report."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ecrl_cli.checkpoint.format.names import COMPONENTS, MODEL, step_name
from ecrl_cli.history.divergence import loss_divergence, read_tensors, state_divergence
from ecrl_cli.history.lineage import lineage, losses
from ecrl_cli.history.load import RunRecords
from ecrl_cli.records.events import SCHEMA_VERSION
from ecrl_cli.records.layout import RunLayout

MEASURED = ("parameters", "buffers")  # kept apart: BatchNorm's counters would dominate the weights


def divergence_document(run: RunRecords, reference: RunRecords) -> dict[str, Any]:
    """Losses over the committed sequences; which components' final digests differ (None if a run
    has no final record); distances.

    `state`: by component L2 of the difference, L2 relative to the reference's norm, and how many
    tensors differ, at `state_step`: zero without reading if the final digests agree, else at the
    newest step whose checkpoint both runs still have (None: there is none).
    """
    loss = loss_divergence(losses(run, lineage(run)), losses(reference, lineage(reference)))
    equal = _final_equal(run, reference)
    step, state = _state(run, reference, equal)
    return {
        "schema_version": SCHEMA_VERSION,
        "reference": reference.layout.root.name,
        "reference_run_id": reference.stored.run_id,
        "loss": asdict(loss),
        "final_equal": equal,
        "state_step": step,
        "state": state,
    }


def _final_equal(run: RunRecords, reference: RunRecords) -> dict[str, bool] | None:
    a, b = run.final, reference.final
    if a is None or b is None or a.global_step != b.global_step:
        return None
    return {
        name: getattr(a, f"{name}_digest") == getattr(b, f"{name}_digest") for name in COMPONENTS
    }


def _state(
    run: RunRecords, reference: RunRecords, equal: dict[str, bool] | None
) -> tuple[int | None, dict[str, Any] | None]:
    if run.final and equal and all(equal[name] for name in MEASURED):
        return run.final.global_step, {
            name: {"l2": 0.0, "relative_l2": 0.0, "differing": 0} for name in MEASURED
        }
    ours, theirs = _model_files(run.layout), _model_files(reference.layout)
    common = sorted(set(ours) & set(theirs))
    if not common:
        return None, None
    a, b = read_tensors(ours[common[-1]]), read_tensors(theirs[common[-1]])
    return common[-1], {name: _distance(name, a, b) for name in MEASURED}


def _distance(component: str, ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    a, b = (
        {n: t for n, t in tensors.items() if n.startswith(f"{component}.")}
        for tensors in (ours, theirs)
    )
    found = state_divergence(a, b)
    return {"l2": found.l2, "relative_l2": found.relative_l2, "differing": len(found.differing)}


def _model_files(layout: RunLayout) -> dict[int, Path]:
    """By step, the safetensors file of the model; published .pt files are left out, as they need
    torch to read.
    """
    found = {}
    for path in layout.checkpoints.glob("step_*") if layout.checkpoints.is_dir() else ():
        file = path / MODEL if path.is_dir() else path
        digits = path.name.removeprefix("step_").partition(".")[0]
        if (
            file.suffix == ".safetensors"
            and digits.isdigit()
            and file.is_file()
            and path.name.startswith(step_name(int(digits)))
        ):
            found[int(digits)] = file
    return found
