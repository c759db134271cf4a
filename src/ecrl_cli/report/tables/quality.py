"""The table of what each arm has learnt: quality on held-out data at the target, with intervals
over its runs.
"""

from __future__ import annotations

from ecrl_cli.metrics.statistics import summary
from ecrl_cli.report.formats import in_brackets
from ecrl_cli.report.model.arms import HELD_OUT
from ecrl_cli.report.model.comparison import Comparison
from ecrl_cli.report.tables.runs import ARM, NAMES, SUITE
from ecrl_cli.report.tables.table import Cell, Column, Row, Table, interval_cell, span_cell


def quality_table(comparison: Comparison) -> Table:
    """One row per arm and measure; empty unless a run measured its quality (`evaluate.every`)."""
    columns = (
        SUITE,
        ARM,
        Column("measure"),
        Column("runs", "count"),
        Column("mean", "measured"),
        Column("95% t", "measured"),
        Column("BCa", "measured"),
        Column("lowest", "measured"),
        Column("highest", "measured"),
        Column("samples", "count"),
        Column("evaluations", "count"),
        Column("evaluating", "seconds", "of a run, mean"),
    )
    rows: list[Row] = []
    for arm in comparison.arms:
        for measure in HELD_OUT:
            name = "loss" if measure == "held_out_loss" else measure
            found = [(m, value) for m in arm.metrics if (value := m.held_out(name)) is not None]
            if not found:
                continue
            values, mean = [value for _, value in found], arm.summary(measure)
            last = found[0][0].evaluations[-1]
            rows.append(
                (
                    arm.suite,
                    Cell(arm.label, arm=arm.label),
                    NAMES[measure],
                    len(values),
                    Cell(mean.mean, strong=True) if mean else None,
                    *(
                        (span_cell(mean), interval_cell(mean.boot_low, mean.boot_high))
                        if mean
                        else (None, None)
                    ),
                    *(min(values), max(values), int(last["samples"]), len(found[0][0].evaluations)),
                    summary([m.seconds["evaluate"] for m, _ in found]).mean,
                )
            )
    note = "Runs of one arm differ in the seed; its recovery, if exact, changes nothing here."
    return Table(
        f"Quality on held-out data at the target{in_brackets(comparison.scale())}",
        columns,
        tuple(rows),
        note,
        "summary.csv",
    )
