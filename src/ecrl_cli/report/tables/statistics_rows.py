"""The rows of summary.csv and comparisons.csv, and of the noise, the overlap and the restarts: the statistics of `metrics`, joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ecrl_cli.metrics.restarts import RESTART_COSTS, Restart
from ecrl_cli.metrics.statistics import Paired, Summary, summary
from ecrl_cli.report.model.arms import MEASURES, Arm
from ecrl_cli.report.model.comparison import Comparison
from ecrl_cli.report.model.overlap import overlaps
from ecrl_cli.report.model.paired import NoiseFloor, above_floor, against_floor, contrasts, floors, noise_floor, paired_suites, told_apart, versus

Row = dict[str, Any]
INTERVALS = ("ci95_low", "ci95_high", "bca_low", "bca_high")


def summary_rows(comparison: Comparison) -> list[Row]:
    """One row per arm and suite, and per arm over all suites; an arm of a suite that failed a gate has its n and no averages."""
    return [summary_row(arm, comparison.scale([arm.suite])) for arm in comparison.arms] + [
        summary_row(arm, comparison.scale(comparison.passed)) for arm in comparison.pooled
    ]


def summary_row(arm: Arm, scale: str) -> Row:
    row: Row = {"suite": arm.suite, "variant": arm.variant, "arm": arm.label, "scale": scale, "n": len(arm.metrics), "averaged": arm.whole}
    for measure in MEASURES:
        row |= summary_cells(measure, arm.summary(measure))
    return row


def summary_cells(name: str, found: Summary | None) -> Row:
    """Mean, sd, Student's interval and the bootstrap's under `name`; empty where there is none."""
    values = (found.mean, found.sd, found.low, found.high, found.boot_low, found.boot_high) if found else (None,) * 6
    return {f"{name}_{key}": value for key, value in zip(("mean", "sd", *INTERVALS), values, strict=True)}


def comparison_rows(comparison: Comparison) -> list[Row]:
    """One row per suite (or all of them), arm, base and measure."""
    rows = []
    for scope, suites in comparison.scopes:
        for arm, base in contrasts(comparison, suites):
            members = paired_suites(comparison, arm, base, suites)
            for measure in MEASURES:
                found = versus(comparison, arm, base, measure, suites)
                if found:
                    floor = noise_floor(comparison, measure, members)
                    row: Row = {"suite": scope, "arm": arm, "base": base, "measure": measure, "scale": comparison.scale(suites)}
                    rows.append(row | pair_cells(found) | _against_noise(found, floor))
    return rows


def pair_cells(pair: Paired) -> Row:
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


def _against_noise(pair: Paired, floor: NoiseFloor | None) -> Row:
    return {
        "floor_source": floor.source if floor else "",
        "floor_pairs": floor.pairs if floor else 0,
        "floor_largest": floor.largest if floor else None,
        "floor_of_mean": floor.of_mean(pair.n) if floor else None,
        "above_floor": above_floor(pair, floor),
        "against_floor": against_floor(pair, floor),
        "told_apart": told_apart(pair, floor),
    }


def noise_rows(comparison: Comparison) -> list[Row]:
    """What runs that are the same differ by: per scope, source and measure."""
    return [
        {"suite": scope, "source": floor.source, "measure": measure, "scale": comparison.scale(suites), "pairs": floor.pairs}
        | summary_cells("relative", floor.relative)
        | {"largest": floor.largest, "ended_alike": floor.alike, "ended_differing": floor.differing}
        for scope, suites in comparison.scopes
        for measure in MEASURES
        for floor in floors(comparison, measure, suites)
    ]


def overlap_rows(comparison: Comparison) -> list[Row]:
    """Stall saved against wall saved, and what a write cost: per scope and overlapped arm."""
    return [
        {"suite": scope, "arm": arm, "base": base, "scale": comparison.scale(suites), "pairs": saved.pairs}
        | summary_cells("stall_saved_s", saved.stall_saved_s)
        | summary_cells("wall_saved_s", saved.wall_saved_s)
        | {"efficiency": saved.efficiency, "efficiency_bca_low": saved.efficiency_low, "efficiency_bca_high": saved.efficiency_high}
        | {f"overlapped_{key}": value for key, value in asdict(saved.overlapped).items()}
        | {f"blocking_{key}": value for key, value in asdict(saved.blocking).items()}
        for scope, suites in comparison.scopes
        for arm, base, saved in overlaps(comparison, suites)
    ]


def restart_cost_rows(comparison: Comparison) -> list[Row]:
    """What a restart cost on average, phase by phase: per suite and arm, and per arm over all suites; only where the runs are averaged."""
    found = []
    for arm in [*comparison.arms, *comparison.pooled]:
        restarts = [restart for run in arm.runs if run.counted for restart in run.restarts] if arm.whole else []
        if restarts:
            scale = comparison.scale(sorted({run.suite for run in arm.runs}))
            row: Row = {"suite": arm.suite, "arm": arm.label, "scale": scale, "restarts": len(restarts)}
            found.append(row | _phase_cells(restarts))
    return found


def _phase_cells(restarts: Sequence[Restart]) -> Row:
    row: Row = {}
    for phase in RESTART_COSTS:
        row |= summary_cells(f"{phase}_s", summary([restart.seconds[phase] for restart in restarts]))
    row |= summary_cells("total_s", summary([restart.total_s for restart in restarts]))
    return row | summary_cells("replayed_steps", summary([restart.replayed for restart in restarts]))
