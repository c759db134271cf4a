"""The rows of runs.csv, summary.csv and report.json: every number as recorded or as `metrics.statistics` gives it."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ecrl_cli.report.arms import BASES, MEASURES, Arm, run_versus, versus
from ecrl_cli.report.comparison import Comparison
from ecrl_cli.report.evidence import CHECKPOINT_KEYS, Run
from ecrl_cli.report.palette import CATEGORY_COLOURS

Row = dict[str, Any]

_SIZES = ("target_steps", "committed_steps", "replayed_steps", "restarts", "scale", "global_batch", "run_id", "reference_id")
_PLAIN = ("goodput", "goodput_published_clock", "wall_s", "stall_per_checkpoint_s", *_SIZES)


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


def summary_row(arm: Arm, arms: Sequence[Arm]) -> Row:
    """One row of summary.csv; an arm of a suite that failed a gate has its n and no averages."""
    row: Row = {"suite": arm.suite, "variant": arm.variant, "arm": arm.label, "n": len(arm.metrics), "averaged": arm.whole}
    for measure in MEASURES:
        found = arm.summary(measure)
        row |= {f"{measure}_mean": found.mean if found else None, f"{measure}_sd": found.sd if found else None}
        row |= {f"{measure}_ci95_low": found.low if found else None, f"{measure}_ci95_high": found.high if found else None}
    for base in BASES:
        pair = versus(arm, arms, base)
        row |= {f"goodput_vs_{base}_pairs": pair.pairs if pair else 0}
        row |= {f"goodput_vs_{base}_ratio_of_means": pair.ratio_of_means if pair else None}
        row |= {f"goodput_vs_{base}_mean_of_ratios": pair.mean_of_ratios if pair else None}
    return row


def run_rows(comparison: Comparison) -> list[Row]:
    return [run_row(run, comparison) for run in comparison.runs]


def summary_rows(comparison: Comparison) -> list[Row]:
    return [summary_row(arm, comparison.arms) for arm in comparison.arms]


def as_csv(rows: Sequence[Row]) -> bytes:
    """UTF-8 with a header; empty cells for what is not there; floats in full precision."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["run"])
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def as_document(comparison: Comparison, headline: str, sentences: Sequence[str]) -> dict[str, Any]:
    """report.json."""
    return {
        "schema_version": 1,
        "exit_code": comparison.exit_code,
        "headline": headline,
        "sentences": list(sentences),
        "gates": {suite: [asdict(gate) for gate in gates] for suite, gates in comparison.gates.items()},
        "runs": [_finite(row) for row in run_rows(comparison)],
        "summary": [_finite(row) for row in summary_rows(comparison)],
    }


def _finite(row: Row) -> Row:
    """JSON has no NaN and no infinity: they become text."""
    return {key: str(value) if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}
