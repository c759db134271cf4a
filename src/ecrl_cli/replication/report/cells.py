"""Formats numbers as cells of the published tables: published ones as printed, measured ones with
their interval.
"""

from __future__ import annotations

from collections.abc import Sequence

from ecrl_cli.metrics.statistics import Paired, Summary, summary
from ecrl_cli.replication.report.sample import Experiment
from ecrl_cli.replication.report.values import SuiteValues
from ecrl_cli.report.formats import plural
from ecrl_cli.report.render.publication import PublishedTable
from ecrl_cli.report.tables.table import Cell, Column, Row, Table, Value, mean_cell, text_of

DATASETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
MODELS = {"r18": "ResNet-18", "r50": "ResNet-50"}
AS_PUBLISHED = "published"
_KINDS = {"": "published", "%": "published percent", "pp": "published points"}


def published_table(
    experiment: Experiment,
    ident: str,
    title: str,
    columns: Sequence[Column],
    rows: Sequence[Row],
    notes: Sequence[str],
) -> PublishedTable:
    """A table of `experiment`, whose scale ends the title."""
    table = Table(f"{title} ({experiment.scale})", tuple(columns), tuple(rows), " ".join(notes))
    return PublishedTable(ident, table, experiment.setting)


def suite_name(values: SuiteValues) -> str:
    return f"{DATASETS[values.dataset]} {MODELS[values.model]} {values.failure}"


def printed(value: float | None, unit: str = "") -> Value:
    """A published number with four decimals; percentages and points with a sign."""
    return None if value is None else Cell(value, _KINDS[unit])


def signed(value: float) -> Value:
    """A published difference in the measure's own unit."""
    return Cell(value, "published difference")


def estimate(found: Summary | None, *, sign: bool = False) -> Value:
    """A measured mean with its interval by Student's t."""
    return mean_cell(found, "measured difference" if sign else "measured")


def percent(value: float | None, low: float | None = None, high: float | None = None) -> Value:
    """A measured relative difference with its interval."""
    return None if value is None else Cell(value, "measured change", low, high)


def of_means(pair: Paired | None) -> Value:
    """Ratio of means with its bootstrap interval."""
    return percent(pair.ratio_of_means, pair.ratio_low, pair.ratio_high) if pair else None


def of_ratios(pair: Paired | None) -> Value:
    """Mean of ratios with its interval by Student's t."""
    return mean_cell(pair.mean_of_ratios, "measured change") if pair else None


def change(pair: Paired | None) -> Value:
    """A difference in the measure's own unit."""
    return estimate(pair.difference if pair else None, sign=True)


def counted(number: int | None, one: str = "pair") -> Value:
    return Cell(number, "count", text=plural(number, one)) if number else None


def words(value: Value) -> str:
    """A cell for use in a sentence."""
    return text_of(value, Column(""))


def published_mean_of_ratios(values: Sequence[SuiteValues], name: str) -> float:
    """Percent; `name`: ovl_gain, blk_drop or ovl_drop, the suites' own percentages."""
    return summary([float(getattr(suite, name)) for suite in values]).mean
