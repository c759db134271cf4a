"""The table of disk activity: whether a run's checkpoints line up with bursts on its disk."""

from __future__ import annotations

from dataclasses import astuple
from statistics import median

from ecrl_cli.metrics.disk import bursts
from ecrl_cli.report.model.comparison import Comparison
from ecrl_cli.report.tables.runs import ARM, SEED, SUITE
from ecrl_cli.report.tables.table import Cell, Column, Table

_COLUMNS = (
    *(SUITE, ARM, SEED, Column("interval", "seconds", "between two samples, the median")),
    Column(
        "with a checkpoint",
        "count",
        "intervals in which one was between its submission and its end",
    ),
    Column("others", "count"),
    Column("transfers/s with", "measured", "mean"),
    Column("transfers/s without", "measured", "mean"),
    *(Column("written/s with", "bytes", "median"), Column("written/s without", "bytes", "median")),
    Column("busier than nine in ten others", "count", "by bytes written"),
    Column(
        "rank test p",
        "measured",
        "Mann-Whitney, one-sided: would intervals with a checkpoint be as busy by chance?",
    ),
)


def disk_table(comparison: Comparison) -> Table:
    """One row per run that sampled its disk (`supervision.disk_interval_s`); empty without any."""
    rows = []
    for run in comparison.runs:
        if run.view is None or not run.view.disk:
            continue
        rates, label = run.view.disk, comparison.label(run)
        found = bursts(rates, [(write.start, write.end) for write in run.view.writes])
        interval = median(rate.end - rate.start for rate in rates)
        rows.append((run.suite, Cell(label, arm=label), run.seed, interval, *astuple(found)))
    note = (
        "The kernel's counters are those of the whole device: what other programs did meanwhile is"
        " in them. Empty: no interval of one kind."
    )
    return Table(
        "Do checkpoints line up with bursts of disk activity?", _COLUMNS, tuple(rows), note
    )
