"""A study's result as data: tables, figures and gates that the report shows unchanged, without
arithmetic of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ecrl_cli.metrics.gates import Gate
from ecrl_cli.metrics.statistics import clopper_pearson, wilson

SCHEMA_VERSION = 1

# How a column's numbers are to be formatted. share: 0..1. change: a relative difference, signed.
KINDS = ("text", "count", "share", "change", "seconds", "bytes", "number")


@dataclass(frozen=True)
class ResultColumn:
    key: str
    label: str
    kind: str = "text"


@dataclass(frozen=True)
class ResultTable:
    """`rows` hold a value (or None) per column key. Columns of published values are labelled so."""

    name: str
    title: str
    columns: tuple[ResultColumn, ...]
    rows: tuple[dict[str, Any], ...]
    note: str = ""


@dataclass(frozen=True)
class Series:
    """`y` over `x` (or over the figure's categories if `x` is empty); `low`, `high`: intervals, or
    empty.
    """

    label: str
    y: tuple[float, ...]
    x: tuple[float, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True)
class Figure:
    """`kind`: bars (grouped, with intervals) | stacked (bars) | cdf (`y` are the samples) | lines.
    `marks`: vertical lines at x.

    `log_x`: for cdf and lines; `log_y`: for lines.
    """

    name: str
    title: str
    kind: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    categories: tuple[str, ...] = ()
    marks: tuple[float, ...] = ()
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Findings:
    """`gates`: pass or fail. `notes`: sentences for the reader on what a zero supports and what is
    not covered.
    """

    tables: tuple[ResultTable, ...] = ()
    figures: tuple[Figure, ...] = ()
    gates: tuple[Gate, ...] = ()
    notes: tuple[str, ...] = ()


PROPORTION_COLUMNS = (
    ResultColumn("k", "count", "count"),
    ResultColumn("n", "of", "count"),
    ResultColumn("rate", "rate", "share"),
    ResultColumn("wilson_low", "Wilson 95% low", "share"),
    ResultColumn("wilson_high", "Wilson 95% high", "share"),
    ResultColumn("cp_low", "Clopper-Pearson 95% low", "share"),
    ResultColumn("cp_high", "Clopper-Pearson 95% high", "share"),
)


def proportion(k: int, n: int) -> dict[str, Any]:
    """The values of PROPORTION_COLUMNS for `k` of `n`; None if nothing was tried."""
    if n == 0:
        return {column.key: None for column in PROPORTION_COLUMNS} | {"k": 0, "n": 0}
    score, exact = wilson(k, n), clopper_pearson(k, n)
    bounds = {
        "wilson_low": score.low,
        "wilson_high": score.high,
        "cp_low": exact.low,
        "cp_high": exact.high,
    }
    return {"k": k, "n": n, "rate": k / n, **bounds}


def shares_series(label: str, counts: Iterable[tuple[int, int]]) -> Series:
    """The share of each (k, n) with its Wilson interval; 0 where nothing was tried."""
    shares = [proportion(k, n) for k, n in counts]
    rate, low, high = (
        tuple(share[key] or 0.0 for share in shares)
        for key in ("rate", "wilson_low", "wilson_high")
    )
    return Series(label, rate, low=low, high=high)


def upper_bound(n: int) -> float:
    """The one-sided exact 95% upper bound for 0 of `n`: 1 - 0.05^(1/n)."""
    return float(1 - 0.05 ** (1 / n))
