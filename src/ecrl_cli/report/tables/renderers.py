"""A table as CSV, as Markdown, for a terminal and for the page. Records may hold anything: each renderer escapes, here and nowhere else."""

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

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # what a spreadsheet takes for one
MOST_ROWS = 400  # of a table on the page; all of it is in its CSV


def csv_of(table: Table) -> bytes:
    """Every value in full precision under the keys of the columns; empty where it is missing."""
    rows = ([scalar(value) for value in row] for row in table.rows)
    return csv_bytes([column.key or column.label for column in table.columns], rows)


def csv_bytes(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    """UTF-8. A spreadsheet shows what others may have written into records, and takes none of it for a formula, the header neither."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([_csv_cell(name) for name in header])
    writer.writerows([_csv_cell(value) for value in row] for row in rows)
    return text.getvalue().encode()


def _csv_cell(value: Any) -> Any:
    return printable(f"'{value}" if value.startswith(_FORMULA) else value) if isinstance(value, str) else value


def escaped(text: str) -> str:
    """`text` as Markdown shows it, whatever it holds."""
    plain = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    bare = re.sub(r"(?i)(:)(?=//)|\b(www)(?=\.)", lambda found: f"&#{ord(found[0][0])};{found[0][1:]}", plain)  # no link by itself either
    return "".join("\\" + c if c in "\\`*_[]|~" or (c == "#" and not bare.startswith("&", max(at - 1, 0))) else c for at, c in enumerate(bare))


def markdown_of(table: Table, most: int | None = None) -> list[str]:
    """The lines of the grid alone; `most`: rows of it."""
    columns = [column for _, column in table.visible]
    head = [escaped(column.label) for column in columns]
    rule = ["---" if column.is_text else "---:" for column in columns]
    rows = [[escaped(text) for text in row] for row in _texts(table, most)]
    return ["| " + " | ".join(row) + " |" for row in [head, rule, *rows]]


def markdown_section(table: Table, most: int | None = None) -> list[str]:
    """The table under its title, with its note and where all of it stands; `most`: rows that are shown."""
    return [f"## {escaped(table.title)}", "", *markdown_of(table, most), "", *_below(table, most)]


def _below(table: Table, most: int | None) -> list[str]:
    text = f"{escaped(table.note)} {escaped(cut_note(table, most))}".strip()
    return [text, ""] if text else []


def cut_note(table: Table, most: int | None) -> str:
    """Where the rest of the rows stands, or all of them."""
    if most is not None and len(table.rows) > most:
        return f"{plural(len(table.rows) - most, 'more row')} in {table.file}."
    return f"Data: {table.file}." if table.file else ""


def terminal_of(table: Table, most: int | None = None) -> list[str]:
    """The first `most` rows under their labels, text to the left and numbers to the right, as wide as they are."""
    shown = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for _, column in table.visible:
        shown.add_column(Text(printable(column.label)), justify="left" if column.is_text else "right", no_wrap=True)
    for row in _texts(table, most):
        shown.add_row(*(Text(printable(text)) for text in row))
    console = Console(file=io.StringIO(), width=100_000, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(shown)
    return [f"  {line}".rstrip() for line in capture.get().splitlines()]


def _texts(table: Table, most: int | None) -> list[list[str]]:
    """One line per value; a row that ends early is filled with missing ones."""
    whole = [(*row, *[None] * (len(table.columns) - len(row))) for row in table.rows[:most]]
    return [[text_of(row[at], column) for at, column in table.visible] for row in whole]


@dataclass(frozen=True)
class PageCell:
    """A cell as the page's template has it: every text still unescaped (jinja does that), `span` the number of columns that it fills."""

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
    """What the page's template fills in; the minus signs are true ones."""
    return [PageRow(tuple(_page_cells(table, row)), _facets(table, row)) for row in table.rows[:MOST_ROWS]]


def _page_cells(table: Table, row: Row) -> Iterable[PageCell]:
    shown = [(at, column) for at, column in table.visible if at < len(row)]
    for at, column in shown:
        last = at == len(row) - 1
        yield _page_cell(row[at], column, len(table.visible) - len(shown) + 1 if last else 1)


def _page_cell(value: Value, column: Column, span: int) -> PageCell:
    main, small = (minus(text) for text in texts_of(value, column))
    low, _, high = small.partition(" to ")
    small = "" if low == high else small  # an interval that is no wider than its digits says nothing more
    sorted_by = scalar(value)
    key = "" if sorted_by is None else printable(sorted_by) if isinstance(sorted_by, str) else repr(float(sorted_by))
    cell = value if isinstance(value, Cell) else Cell(value)
    return PageCell("\N{EN DASH}" if main == NONE else main, small, key, column.is_text, cell, span)


def _facets(table: Table, row: Row) -> dict[str, str]:
    """What the filter knows of a row; what it does not name is never filtered by."""
    found = {}
    for value, column in zip(row, table.columns, strict=False):
        if column.facet:
            found[column.facet] = (isinstance(value, Cell) and value.arm) or str(scalar(value) or "")
    return found
