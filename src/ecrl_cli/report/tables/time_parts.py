"""The tables of what stalls and restarts consist of, part by part."""

from __future__ import annotations

from ecrl_cli.metrics.recoveries import RESTART_COSTS
from ecrl_cli.metrics.statistics import summary
from ecrl_cli.records.events import STALL_PARTS
from ecrl_cli.report import formats
from ecrl_cli.report.model.comparison import Comparison
from ecrl_cli.report.tables.runs import ARM, SUITE
from ecrl_cli.report.tables.table import Cell, Column, Row, Table, span_cell


def stalls_table(comparison: Comparison) -> Table:
    """The parts of the stalls: means over runs; arms with a run that did not record them are left
    out.
    """
    rows: list[Row] = []
    for arm in comparison.every_arm:
        metrics = arm.metrics if arm.averaged else []
        parts = [[m.stalled(part) for m in metrics] for part in STALL_PARTS]
        if metrics and all(value is not None for values in parts for value in values):
            means = [summary([value or 0.0 for value in values]).mean for values in parts]
            total = summary([m.checkpoints["stall_s"] for m in metrics]).mean
            rows.append((arm.suite, Cell(arm.label, arm=arm.label), len(metrics), total, *means))
    columns = (
        SUITE,
        ARM,
        Column("runs", "count"),
        Column("stall", "seconds"),
        *(Column(part, "seconds") for part in STALL_PARTS),
    )
    title = (
        "What the stalls of a run consist of: mean seconds per run, which add"
        f" up{formats.in_brackets(comparison.scale())}"
    )
    return Table(title, columns, tuple(rows), file="runs.csv")


def restarts_table(comparison: Comparison) -> Table:
    """The cost of a restart by phase: means over restarts."""
    rows: list[Row] = []
    for arm in comparison.every_arm:
        if costs := arm.restart_costs():
            phases, total = [costs[phase].mean for phase in RESTART_COSTS], costs["total"]
            rows.append(
                (
                    arm.suite,
                    Cell(arm.label, arm=arm.label),
                    total.n,
                    *phases,
                    total.mean,
                    span_cell(total),
                )
            )
    columns = (
        SUITE,
        ARM,
        Column("restarts", "count"),
        *(Column(phase.replace("_", "-"), "seconds") for phase in RESTART_COSTS),
        *(Column("total", "seconds"), Column("95% t", "seconds")),
    )
    title = (
        "A restart, phase by phase: mean seconds per"
        f" restart{formats.in_brackets(comparison.scale())}"
    )
    return Table(title, columns, tuple(rows), file="restarts.csv")
