"""The rows of runs.csv, checkpoints.csv, restarts.csv and recoveries.csv as recorded, and report.json, which has the statistics too."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from ecrl_cli.metrics.checkpoints import TIMES
from ecrl_cli.metrics.restarts import RESTART_COSTS
from ecrl_cli.report.figures.palette import CATEGORY_COLOURS
from ecrl_cli.report.formats import csv_bytes
from ecrl_cli.report.model.arms import BASES, run_versus
from ecrl_cli.report.model.comparison import Comparison
from ecrl_cli.report.model.run_record import CHECKPOINT_KEYS, Run
from ecrl_cli.report.tables.recoveries import recovery_of
from ecrl_cli.report.tables.statistics_rows import Row, comparison_rows, noise_rows, overlap_rows, restart_cost_rows, summary_rows

_SIZES = (
    "target_steps",
    "committed_steps",
    "replayed_steps",
    "restarts",
    "survivals",
    "lost_samples",
    "scale",
    "global_batch",
    "run_id",
    "reference_id",
)
_PLAIN = ("goodput", "goodput_published_clock", "wall_s", "stall_per_checkpoint_s", *_SIZES)

SNAPSHOT_KEYS = ("taken", "copy_s", "sync_s", "per_snapshot_s")  # in memory, of runs that take any
_RECOVERY = ("attempt", "way", "resumed_from_step", "joined", "lost_samples", "given_up_steps", "seconds")


def run_row(run: Run, comparison: Comparison) -> Row:
    """One row of runs.csv; the numbers of a run without metrics are empty, its `left_out` says why."""
    m = run.metrics
    row: Row = {
        "run": run.name,
        "suite": run.suite,
        "variant": run.variant,
        "arm": comparison.label(run),
        "seed": run.seed,
        "verdict": run.verdict.status,
        "left_out": run.reason,
    }
    row |= {key: getattr(m, key) if m else None for key in _PLAIN}
    arms = list(comparison.arms)
    row |= {f"goodput_vs_{base}": run_versus(run, arms, base) for base in BASES}
    row |= {f"checkpoint_{key}": m.checkpoints[key] if m else None for key in CHECKPOINT_KEYS}
    row |= {f"snapshots_{key}": m.snapshots.get(key) if m else None for key in SNAPSHOT_KEYS}
    row |= {f"seconds_{key}": m.seconds[key] if m else None for key in CATEGORY_COLOURS}
    final = (m.final if m else None) or {}
    row |= divergence_cells(run)
    return row | {f"final_{key}": final.get(key) for key in ("global_step", "parameters_digest", "buffers_digest", "optimizer_digest", "loss")}


def divergence_cells(run: Run) -> Row:
    """How far the run ended from its reference; empty where it was not compared."""
    document = run.divergence or {}
    loss, state = document.get("loss") or {}, document.get("state") or {}
    cells = {"reference": document.get("reference")}
    cells |= {f"loss_difference_{key}": loss.get(key) for key in ("maximum", "mean", "auc", "first_differing_step")}
    for component in ("parameters", "buffers"):
        cells |= {f"{component}_{key}": (state.get(component) or {}).get(key) for key in ("l2", "relative_l2")}
    return cells | {"state_step": document.get("state_step")}


def run_rows(comparison: Comparison) -> list[Row]:
    return [run_row(run, comparison) for run in comparison.runs]


def checkpoint_rows(comparison: Comparison) -> list[Row]:
    """checkpoints.csv: every checkpoint that was submitted, once, whatever became of it."""
    return [
        _of(run, comparison)
        | {"attempt": save.attempt, "global_step": save.global_step, "end": save.end, "bytes": save.bytes, "inflight": save.inflight}
        | {time: save.seconds[time] for time in TIMES}
        for run in comparison.runs
        for save in run.saves
    ]


def restart_rows(comparison: Comparison) -> list[Row]:
    """restarts.csv: every restart, and what it cost phase by phase."""
    return [
        _of(run, comparison)
        | {"attempt": r.attempt, "after": r.after, "resumed_from_step": r.resumed_from_step, "replayed_steps": r.replayed}
        | {f"{phase}_s": r.seconds[phase] for phase in RESTART_COSTS}
        | {"total_s": r.total_s}
        for run in comparison.runs
        for r in run.restarts
    ]


def recovery_rows(comparison: Comparison) -> list[Row]:
    """recoveries.csv: every recovery, whichever way it went, and what it cost from the blow to the first new step."""
    return [
        _of(run, comparison) | {"recovery": recovery_of(run)} | {key: each.get(key) for key in _RECOVERY} | _sizes_of(each)
        for run in comparison.runs
        for each in (run.metrics.recoveries if run.metrics else ())
    ]


def _sizes_of(recovery: dict[str, Any]) -> Row:
    before, after = recovery.get("ranks") or (None, None)
    return {"ranks_before": before, "ranks_after": after}


def _of(run: Run, comparison: Comparison) -> Row:
    scale = run.metrics.scale if run.metrics else ""
    return {"run": run.name, "suite": run.suite, "arm": comparison.label(run), "seed": run.seed, "scale": scale}


CSV_FILES: dict[str, Callable[[Comparison], list[Row]]] = {
    "runs.csv": run_rows,
    "summary.csv": summary_rows,
    "comparisons.csv": comparison_rows,
    "restarts.csv": restart_rows,
    "recoveries.csv": recovery_rows,
    "checkpoints.csv": checkpoint_rows,
}


def as_csv(rows: Sequence[Row]) -> bytes:
    """UTF-8 with a header; empty cells for what is not there; floats in full precision."""
    header = list(rows[0]) if rows else ["run"]
    return csv_bytes(header, ([row.get(key) for key in header] for row in rows))


def as_document(comparison: Comparison, headline: str, sentences: Sequence[str]) -> dict[str, Any]:
    """report.json."""
    return {
        "schema_version": 1,
        "exit_code": comparison.exit_code,
        "headline": headline,
        "sentences": list(sentences),
        "gates": {suite: [asdict(gate) for gate in gates] for suite, gates in comparison.gates.items()},
        "runs": finite(run_rows(comparison)),
        "summary": finite(summary_rows(comparison)),
        "comparisons": finite(comparison_rows(comparison)),
        "noise": finite(noise_rows(comparison)),
        "overlap": finite(overlap_rows(comparison)),
        "restart_costs": finite(restart_cost_rows(comparison)),
    }


def finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become text."""
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
