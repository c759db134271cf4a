"""Renders a table as CSV, Markdown, for a terminal and for the page. Records may hold any text:
escaping is done by the renderers only.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from ecrl_cli.report.formats import NONE, minus, plural, printable
from ecrl_cli.report.tables.table import Cell, Column, Row, Table, Value, scalar, text_of, texts_of

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # prefixes that a spreadsheet takes for a formula
MOST_ROWS = 400  # of a table on the page; its CSV has all of them


def csv_of(table: Table) -> bytes:
    """Every value in full precision under the keys of the columns; empty if missing."""
    rows = ([scalar(value) for value in row] for row in table.rows)
    return csv_bytes([column.key or column.label for column in table.columns], rows)


def csv_bytes(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    """CSV in UTF-8. Cells and headers are escaped, so that a spreadsheet treats no text from
    records as a formula.
    """
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([_csv_cell(name) for name in header])
    writer.writerows([_csv_cell(value) for value in row] for row in rows)
    return text.getvalue().encode()


def _csv_cell(value: Any) -> Any:
    return (
        printable(f"'{value}" if value.startswith(_FORMULA) and value != "-" else value)
        if isinstance(value, str)
        else value
    )


def escaped(text: str) -> str:
    """`text` escaped for Markdown."""
    plain = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # no automatic links either
    bare = re.sub(
        r"(?i)(:)(?=//)|\b(www)(?=\.)", lambda found: f"&#{ord(found[0][0])};{found[0][1:]}", plain
    )
    return "".join(
        (
            "\\" + c
            if c in "\\`*_[]|~" or (c == "#" and not bare.startswith("&", max(at - 1, 0)))
            else c
        )
        for at, c in enumerate(bare)
    )


def markdown_of(table: Table, most: int | None = None) -> list[str]:
    """The lines of the table's grid, with at most `most` rows."""
    columns = [column for _, column in table.visible]
    head = [escaped(column.label) for column in columns]
    rule = ["---" if column.is_text else "---:" for column in columns]
    rows = [[escaped(text) for text in row] for row in _texts(table, most)]
    return ["| " + " | ".join(row) + " |" for row in [head, rule, *rows]]


def markdown_section(table: Table, most: int | None = None) -> list[str]:
    """The table with its title, its note and its data file; at most `most` rows are shown."""
    return [f"## {escaped(table.title)}", "", *markdown_of(table, most), "", *_below(table, most)]


def _below(table: Table, most: int | None) -> list[str]:
    text = f"{escaped(table.note)} {escaped(cut_note(table, most))}".strip()
    return [text, ""] if text else []


def cut_note(table: Table, most: int | None) -> str:
    """Where the omitted rows, or all rows, can be found."""
    if most is not None and len(table.rows) > most:
        return f"{plural(len(table.rows) - most, 'more row')} in {table.file}."
    return f"Data: {table.file}." if table.file else ""


def terminal_of(table: Table, most: int | None = None) -> list[str]:
    """The first `most` rows under their labels, text left-aligned and numbers right-aligned,
    without wrapping.
    """
    shown = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for _, column in table.visible:
        shown.add_column(
            Text(printable(column.label)),
            justify="left" if column.is_text else "right",
            no_wrap=True,
        )
    for row in _texts(table, most):
        shown.add_row(*(Text(printable(text)) for text in row))
    console = Console(file=io.StringIO(), width=100_000, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(shown)
    return [f"  {line}".rstrip() for line in capture.get().splitlines()]


def _texts(table: Table, most: int | None) -> list[list[str]]:
    """One text per value; short rows are padded with missing values."""
    whole = [(*row, *[None] * (len(table.columns) - len(row))) for row in table.rows[:most]]
    return [[text_of(row[at], column) for at, column in table.visible] for row in whole]


@dataclass(frozen=True)
class PageCell:
    """A cell for the page's template: texts are unescaped (jinja escapes them), `span` is the
    number of columns it fills. `label`: its column's.
    """

    label: str
    text: str
    small: str
    sort: str
    is_text: bool
    cell: Cell
    span: int = 1


@dataclass(frozen=True)
class PageRow:
    cells: tuple[PageCell, ...]
    facets: Mapping[str, str]


def page_rows(table: Table) -> list[PageRow]:
    """The rows for the page's template; with true minus signs."""
    return [
        PageRow(tuple(_page_cells(table, row)), _facets(table, row))
        for row in table.rows[:MOST_ROWS]
    ]


def _page_cells(table: Table, row: Row) -> Iterable[PageCell]:
    shown = [(at, column) for at, column in table.visible if at < len(row)]
    for at, column in shown:
        last = at == len(row) - 1
        yield _page_cell(row[at], column, len(table.visible) - len(shown) + 1 if last else 1)


def _page_cell(value: Value, column: Column, span: int) -> PageCell:
    main, small = (minus(text) for text in texts_of(value, column))
    low, _, high = small.partition(" to ")
    small = "" if low == high else small  # an interval that is empty at the printed precision
    sorted_by = scalar(value)
    key = (
        ""
        if sorted_by is None
        else printable(sorted_by)
        if isinstance(sorted_by, str)
        else repr(float(sorted_by))
    )
    cell = value if isinstance(value, Cell) else Cell(value)
    return PageCell(
        column.label,
        "\N{EN DASH}" if main == NONE else main,
        small,
        key,
        column.is_text,
        cell,
        span,
    )


def _facets(table: Table, row: Row) -> dict[str, str]:
    """The filter values of a row; rows without a value are not filtered by it."""
    found = {}
    for value, column in zip(row, table.columns, strict=False):
        if column.facet:
            found[column.facet] = (isinstance(value, Cell) and value.arm) or str(
                scalar(value) or ""
            )
    return found
