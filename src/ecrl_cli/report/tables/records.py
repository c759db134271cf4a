"""The rows of every CSV, and report.json, which adds the statistics. Keys are contracts; values are
as recorded, in full precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ecrl_cli.metrics.checkpoints import TIMES
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.metrics.recoveries import RESTART_COSTS
from ecrl_cli.metrics.statistics import Paired, Summary
from ecrl_cli.report.formats import plural
from ecrl_cli.report.model.arms import BASES, HELD_OUT, MEASURES, Arm, run_versus
from ecrl_cli.report.model.comparison import Comparison
from ecrl_cli.report.model.contrast import Contrast, contrasts, floors, overlaps
from ecrl_cli.report.model.effects import effects, interactions
from ecrl_cli.report.model.run_record import CHECKPOINT_KEYS, Run
from ecrl_cli.report.palette import CATEGORY_COLOURS

Record = dict[str, Any]
EFFECT_MEASURES = (
    "goodput",
    "goodput_published_clock",
    "wall_s",
    "stall_s",
    "stall_per_checkpoint_s",
)
INTERVALS = ("ci95_low", "ci95_high", "bca_low", "bca_high")

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

SNAPSHOT_KEYS = ("taken", "copy_s", "sync_s", "per_snapshot_s")  # of snapshots in memory
_RECOVERY = (
    "attempt",
    "way",
    "resumed_from_step",
    "joined",
    "lost_samples",
    "given_up_steps",
    "seconds",
)


def run_row(run: Run, comparison: Comparison) -> Record:
    """One row of runs.csv; without metrics its numbers are empty, and `left_out` gives the
    reason.
    """
    m = run.metrics
    row: Record = {
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
    saves, copied = (
        run.save_latency,
        [line.copy_s for line in run.checkpoints if line.event == "submitted"],
    )
    row |= {
        "checkpoint_copy_s": math.fsum(copied) if any(copied) else None,
        "save_latency_s": saves.latency_s,
        "save_interval_s": saves.interval_s,
        "save_latency_share": saves.share,
    }
    row |= {f"snapshots_{key}": m.snapshots.get(key) if m else None for key in SNAPSHOT_KEYS}
    row |= {f"seconds_{key}": m.seconds[key] if m else None for key in CATEGORY_COLOURS}
    final = (m.final if m else None) or {}
    row |= {name: MEASURES[name](m) if m else None for name in HELD_OUT}
    row |= divergence_cells(run)
    return row | {
        f"final_{key}": final.get(key)
        for key in (
            "global_step",
            "parameters_digest",
            "buffers_digest",
            "optimizer_digest",
            "loss",
        )
    }


def divergence_cells(run: Run) -> Record:
    """How far the run's final state is from its reference's; empty if not compared."""
    document = run.divergence or {}
    loss, state = document.get("loss") or {}, document.get("state") or {}
    cells = {"reference": document.get("reference")}
    cells |= {
        f"loss_difference_{key}": loss.get(key)
        for key in ("maximum", "mean", "auc", "first_differing_step")
    }
    for component in ("parameters", "buffers"):
        cells |= {
            f"{component}_{key}": (state.get(component) or {}).get(key)
            for key in ("l2", "relative_l2")
        }
    return cells | {"state_step": document.get("state_step")}


def run_rows(comparison: Comparison) -> list[Record]:
    return [run_row(run, comparison) for run in comparison.runs]


def checkpoint_rows(comparison: Comparison) -> list[Record]:
    """checkpoints.csv: every submitted checkpoint, once, whatever its end."""
    return [
        _of(run, comparison)
        | {
            "attempt": save.attempt,
            "global_step": save.global_step,
            "end": save.end,
            "bytes": save.bytes,
            "inflight": save.inflight,
        }
        | {time: save.seconds[time] for time in TIMES}
        for run in comparison.runs
        for save in run.saves
    ]


def restart_rows(comparison: Comparison) -> list[Record]:
    """restarts.csv: every restart, with its cost by phase."""
    return [
        _of(run, comparison)
        | {
            "attempt": r.attempt,
            "after": r.after,
            "resumed_from_step": r.resumed_from_step,
            "replayed_steps": r.replayed,
        }
        | {f"{phase}_s": r.seconds[phase] for phase in RESTART_COSTS}
        | {"total_s": r.total_s}
        for run in comparison.runs
        for r in run.restarts
    ]


def recovery_rows(comparison: Comparison) -> list[Record]:
    """recoveries.csv: every recovery of any kind, with its cost from the failure to the first new
    step.
    """
    return [
        _of(run, comparison)
        | {"recovery": recovery_of(run)}
        | {key: each.get(key) for key in _RECOVERY}
        | dict(zip(("ranks_before", "ranks_after"), each.get("ranks") or (None, None), strict=True))
        for run in comparison.runs
        for each in (run.metrics.recoveries if run.metrics else ())
    ]


def recovery_of(run: Run) -> str:
    """The configured recovery, and the number of spares."""
    spares = run.config.get("supervision", {}).get("spares", 0)
    name = str(run.config.get("recovery", {}).get("name", "")).replace("_", " ")
    return f"{name}, {plural(spares, 'spare')}" if spares else name


def _of(run: Run, comparison: Comparison) -> Record:
    scale = run.metrics.scale if run.metrics else ""
    return {
        "run": run.name,
        "suite": run.suite,
        "arm": comparison.label(run),
        "seed": run.seed,
        "scale": scale,
    }


def summary_rows(comparison: Comparison) -> list[Record]:
    """One row per arm and suite, and per arm over the pooled suites; where a suite failed a gate
    its arms have n but no averages.
    """
    return [summary_row(arm, comparison.scale([arm.suite])) for arm in comparison.arms] + [
        summary_row(arm, comparison.scale(comparison.passed)) for arm in comparison.pooled_arms
    ]


def summary_row(arm: Arm, scale: str) -> Record:
    row: Record = {
        "suite": arm.suite,
        "variant": arm.variant,
        "arm": arm.label,
        "scale": scale,
        "n": len(arm.metrics),
        "averaged": arm.averaged,
    }
    for measure in MEASURES:
        row |= summary_cells(measure, arm.summary(measure))
    return row


def summary_cells(name: str, found: Summary | None) -> Record:
    """Mean, standard deviation, Student's interval and the bootstrap's under `name`; empty if there
    are none.
    """
    values = (
        (found.mean, found.sd, found.low, found.high, found.boot_low, found.boot_high)
        if found
        else (None,) * 6
    )
    return {
        f"{name}_{key}": value
        for key, value in zip(("mean", "sd", *INTERVALS), values, strict=True)
    }


def comparison_rows(comparison: Comparison) -> list[Record]:
    """One row per suite (or all of them), arm, base and measure."""
    rows = []
    for scope, suites in comparison.scopes:
        for each in contrasts(comparison, scope, suites, MEASURES):
            row: Record = {
                "suite": scope,
                "arm": each.arm,
                "base": each.base,
                "measure": each.measure,
                "scale": comparison.scale(suites),
            }
            source = {
                "floor_source": each.floor.source if each.floor else "",
                "floor_pairs": each.floor.pairs if each.floor else 0,
            }
            rows.append(row | pair_cells(each.pair) | source | noise_cells(each))
    return rows


def effect_rows(comparison: Comparison) -> list[Record]:
    """effects.csv: one row per axis, level, base and measure over all pairs, and one per slice of
    it.
    """
    rows = []
    for measure in EFFECT_MEASURES:
        for effect in effects(comparison, measure):
            parts = [
                (effect.whole, "", ""),
                *(
                    (part.contrast, part.level.axis.name, part.level.value)
                    for part in effect.slices
                ),
            ]
            for each, axis, level in parts:
                row: Record = {
                    "axis": effect.axis.name,
                    "key": effect.axis.key,
                    "level": effect.level.value,
                    "base": effect.base.value,
                }
                row |= {
                    "slice_axis": axis,
                    "slice_level": level,
                    "measure": measure,
                    "scale": each.scale,
                }
                rows.append(row | pair_cells(each.pair) | noise_cells(each))
    return rows


def interaction_rows(comparison: Comparison) -> list[Record]:
    """interactions.csv: how far the effect of an axis changes from one level of another axis to the
    next.
    """
    return [
        {"axis": each.level.axis.name, "level": each.level.value, "base": each.base.value}
        | {
            "other_axis": each.other.axis.name,
            "other_level": each.other.value,
            "other_base": each.other_base.value,
        }
        | {"measure": measure, "scale": each.contrast.scale}
        | pair_cells(each.contrast.pair)
        for measure in EFFECT_MEASURES
        for each in interactions(comparison, measure)
    ]


def noise_cells(contrast: Contrast) -> Record:
    """The effect compared with the noise between equal runs."""
    return {
        "floor_largest": contrast.floor.largest if contrast.floor else None,
        "floor_of_mean": contrast.noise,
        "above_floor": contrast.above_floor,
        "against_floor": contrast.against_floor,
        "told_apart": contrast.distinguishable,
    }


def pair_cells(pair: Paired) -> Record:
    """Every number of a comparison."""
    return {
        "pairs": pair.n,
        "ratio_of_means": pair.ratio_of_means,
        "ratio_of_means_bca_low": pair.ratio_low,
        "ratio_of_means_bca_high": pair.ratio_high,
        **summary_cells("mean_of_ratios", pair.mean_of_ratios),
        **summary_cells("difference", pair.difference),
        **{f"signs_{key}": value for key, value in asdict(pair.signs).items()},
    }


def noise_rows(comparison: Comparison) -> list[Record]:
    """Differences between equal runs: per scope, source and measure."""
    return [
        {
            "suite": scope,
            "source": floor.source,
            "measure": measure,
            "scale": comparison.scale(suites),
            "pairs": floor.pairs,
        }
        | summary_cells("relative", floor.relative)
        | {"largest": floor.largest, "ended_alike": floor.alike, "ended_differing": floor.differing}
        for scope, suites in comparison.scopes
        for measure in MEASURES
        for floor in floors(comparison, measure, suites)
    ]


def overlap_rows(comparison: Comparison) -> list[Record]:
    """Stall and wall time saved, and the cost of a write: per scope and overlapped arm."""
    return [
        {
            "suite": scope,
            "arm": arm,
            "base": base,
            "scale": comparison.scale(suites),
            "pairs": saved.pairs,
        }
        | summary_cells("stall_saved_s", saved.stall_saved_s)
        | summary_cells("wall_saved_s", saved.wall_saved_s)
        | {
            "efficiency": saved.efficiency,
            "efficiency_bca_low": saved.efficiency_low,
            "efficiency_bca_high": saved.efficiency_high,
        }
        | {f"overlapped_{key}": value for key, value in asdict(saved.overlapped).items()}
        | {f"blocking_{key}": value for key, value in asdict(saved.blocking).items()}
        for scope, suites in comparison.scopes
        for arm, base, saved in overlaps(comparison, suites)
    ]


def restart_cost_rows(comparison: Comparison) -> list[Record]:
    """Mean cost of a restart by phase: per suite and arm, and per arm over the pooled suites; only
    for averaged arms.
    """
    found = []
    for arm in comparison.every_arm:
        if costs := arm.restart_costs():
            scale = comparison.scale(sorted({run.suite for run in arm.runs}))
            row: Record = {
                "suite": arm.suite,
                "arm": arm.label,
                "scale": scale,
                "restarts": costs["total"].n,
            }
            for part, seconds in costs.items():
                row |= summary_cells(
                    "replayed_steps" if part == "replayed" else f"{part}_s", seconds
                )
            found.append(row)
    return found


CSV_FILES: dict[str, Callable[[Comparison], list[Record]]] = {
    "runs.csv": run_rows,
    "summary.csv": summary_rows,
    "comparisons.csv": comparison_rows,
    "restarts.csv": restart_rows,
    "recoveries.csv": recovery_rows,
    "checkpoints.csv": checkpoint_rows,
    "effects.csv": effect_rows,
    "interactions.csv": interaction_rows,
}


def gates_document(gates: Mapping[str, Sequence[Gate]]) -> dict[str, Any]:
    """The gates of each suite, for a JSON document."""
    return {suite: [asdict(gate) for gate in found] for suite, found in gates.items()}


def as_document(comparison: Comparison, headline: str, sentences: Sequence[str]) -> dict[str, Any]:
    """report.json."""
    return {
        "schema_version": 1,
        "exit_code": comparison.exit_code,
        "headline": headline,
        "sentences": list(sentences),
        "gates": gates_document(comparison.gates),
        "runs": finite(run_rows(comparison)),
        "summary": finite(summary_rows(comparison)),
        "comparisons": finite(comparison_rows(comparison)),
        "effects": finite(effect_rows(comparison)),
        "interactions": finite(interaction_rows(comparison)),
        "noise": finite(noise_rows(comparison)),
        "overlap": finite(overlap_rows(comparison)),
        "restart_costs": finite(restart_cost_rows(comparison)),
    }


def finite(value: Any) -> Any:
    """Converts NaN and infinity, which JSON lacks, to text."""
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
