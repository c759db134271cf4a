"""The type of all tables: columns with a kind, rows of values. Numbers stay numbers; None is a
missing value.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ecrl_cli.metrics.statistics import Signs, Summary
from ecrl_cli.report import formats
from ecrl_cli.report.model.spans import is_range, span

Scalar = str | int | float | bool | None


# How numbers of each kind are formatted. Other kinds are text. `share` is a counted proportion: 0%
# and 100% are shown only if exact.
FORMATS: dict[str, Callable[[Any], str]] = {
    "count": formats.count,
    "number": formats.number,
    "seconds": formats.duration,
    "rate": formats.rate,
    "bytes": formats.size,
    "percent": formats.share,
    "share": formats.proportion,
    "change": formats.change,
    "magnitude": formats.magnitude,
    "measured": lambda value: f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}",
    "measured difference": lambda value: "0" if value == 0 else f"{value:+.4g}",
    "measured change": lambda value: f"{100 * value:+.2f}%",
    "published": lambda value: f"{value:.4f}",
    "published difference": lambda value: f"{value:+.4f}",
    "published percent": lambda value: f"{value:+.4f}%",
    "published points": lambda value: f"{value:+.4f}pp",
}


@dataclass(frozen=True)
class Cell:
    """A value with additional information.

    `kind`: if it differs from the column's. `low`, `high`: its 95% interval (with `is_range` the
    range of its values), possibly without a value. `text`: shown instead of the value, which it is
    still sorted by. `small`: a remark. On the page, `arm` gives it a colour, `anchor` a link,
    `badge` a verdict's symbol.
    """

    value: Scalar = None
    kind: str = ""
    low: float | None = None
    high: float | None = None
    text: str = ""
    small: str = ""
    arm: str = ""
    anchor: str = ""
    badge: str = ""
    strong: bool = False
    is_range: bool = False


Value = Scalar | Cell
Row = tuple[Value, ...]


@dataclass(frozen=True)
class Column:
    """`kind`: a key of FORMATS, or text. `key`: its name in CSV and JSON, if not the label. `help`:
    explains the label.

    `facet`: the facet of the page's filter that the column holds (suite, arm, seed or verdict).
    `hidden`: used by the filter only.
    """

    label: str
    kind: str = "text"
    help: str = ""
    key: str = ""
    facet: str = ""
    hidden: bool = False

    @property
    def is_text(self) -> bool:
        return self.kind not in FORMATS


@dataclass(frozen=True)
class Table:
    """`rows`: as wide as `columns`; a shorter one ends with the reason why the rest is missing.
    `file`: the CSV with all rows.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    note: str = ""
    file: str = ""

    def __bool__(self) -> bool:
        return bool(self.rows)

    @property
    def visible(self) -> list[tuple[int, Column]]:
        """The visible columns, with their index in a row."""
        return [(at, column) for at, column in enumerate(self.columns) if not column.hidden]

    def only(self, columns: Sequence[str], first: Collection[Value] | None = None) -> Table:
        """The table with only the columns of these labels, in that order; a final reason in a short
        row is dropped. `first`: only the rows whose first cell is one of these.
        """
        labels = [column.label for column in self.columns]
        chosen = [labels.index(label) for label in columns]
        whole = [
            row if len(row) == len(labels) else (*row[:-1], *[None] * (len(labels) - len(row) + 1))
            for row in self.rows
            if first is None or row[0] in first
        ]
        rows = tuple(tuple(row[at] for at in chosen) for row in whole)
        return replace(self, columns=tuple(self.columns[at] for at in chosen), rows=rows)


def records_table(
    records: Sequence[Mapping[str, Scalar]], empty: Sequence[str] = ("run",)
) -> Table:
    """Records with equal keys as a table; `empty`: the columns if there is no record."""
    keys = list(records[0]) if records else list(empty)
    return Table(
        "",
        tuple(Column(key) for key in keys),
        tuple(tuple(record.get(key) for key in keys) for record in records),
    )


def scalar(value: Value) -> Scalar:
    """The value for sorting and for CSV."""
    if not isinstance(value, Cell):
        return value
    return value.low if value.value is None else value.value


def text_of(value: Value, column: Column) -> str:
    """`value` in one line, for a terminal and Markdown."""
    main, small = texts_of(value, column)
    if not small:
        return main
    between = isinstance(value, Cell) and value.low is not None
    return f"{main} [{small}]" if between else f"{main} ({small})"


def texts_of(value: Value, column: Column) -> tuple[str, str]:
    """`value`, and the smaller text below it: its interval, or a remark."""
    cell = value if isinstance(value, Cell) else Cell(value)
    kind = cell.kind or column.kind
    ends = (
        ""
        if cell.low is None or cell.high is None
        else _span(cell.low, cell.high, kind) + " (range)" * cell.is_range
    )
    if cell.value is None and not cell.text:
        return ends or formats.NONE, ""
    return formats.printable(cell.text or _formatted(cell.value, kind)), formats.printable(
        cell.small or ends
    )


def _span(low: float, high: float, kind: str) -> str:
    return (
        "all identical"
        if formats.identical(low, high)
        else f"{_formatted(low, kind)} to {_formatted(high, kind)}"
    )


def _formatted(value: Scalar, kind: str) -> str:
    if value is None or value == "":
        return formats.NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (
        FORMATS[kind](value) if kind in FORMATS and isinstance(value, int | float) else str(value)
    )


def mean_cell(found: Summary | None, kind: str = "", *, strong: bool = False) -> Value:
    """A mean with its interval by Student's t, of two values with their range."""
    low, high = span(found) or (None, None)
    return (
        Cell(found.mean, kind, low, high, strong=strong, is_range=is_range(found))
        if found
        else None
    )


def span_cell(found: Summary | None, kind: str = "") -> Value:
    """The interval of `mean_cell` without the mean."""
    ends = span(found)
    return Cell(None, kind, *ends, is_range=is_range(found)) if found and ends else None


def interval_cell(low: float | None, high: float | None, kind: str = "") -> Value:
    """An interval without its value."""
    return None if low is None or high is None else Cell(None, kind, low, high)


def signs_cell(signs: Signs) -> Cell:
    """How many pairs increased; the exact interval of their share and the p-value of the two-sided
    sign test.
    """
    ties = f", {signs.ties} equal" if signs.ties else ""
    text = f"{signs.positive} of {signs.positive + signs.negative} up{ties}"
    if signs.low is None or signs.high is None or signs.p is None:
        return Cell(signs.positive, text=text)
    p = f"p {'<' if signs.p < 0.001 else '='} {max(signs.p, 0.001):.3f}"
    return Cell(
        signs.positive,
        text=text,
        small=f"{formats.share(signs.low)} to {formats.share(signs.high)}, {p}",
    )
