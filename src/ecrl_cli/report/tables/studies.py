"""A study's tables as a reader sees them, as CSV and as JSON. Values stand as recorded; only their look is decided here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ecrl_cli.report import formats
from ecrl_cli.report.formats import NONE, csv_bytes, printable
from ecrl_cli.report.model.study_record import StudyResult, slugs
from ecrl_cli.report.text.study_summary import headline
from ecrl_cli.studies.frame.result import Column, Table

FORMS: dict[str, Callable[[Any], str]] = {
    "count": formats.count,
    "share": formats.proportion,
    "change": formats.change,
    "seconds": formats.duration,
    "bytes": formats.size,
    "number": formats.number,
}


@dataclass(frozen=True)
class DisplayColumn:
    """A column as shown: one of the table's, or the two ends of an interval in one."""

    label: str
    kind: str
    keys: tuple[str, ...]

    @property
    def words(self) -> bool:
        return self.kind == "text"


@dataclass(frozen=True)
class Cell:
    """`text`: for a reader. `value`: to sort by, empty where there is none."""

    text: str
    value: Any


def shown_columns(table: Table) -> list[DisplayColumn]:
    """The columns, `X_low` and `X_high` that stand side by side joined."""
    found: list[DisplayColumn] = []
    for column in table.columns:
        if found and _ends(found[-1], column):
            low = found.pop()
            found.append(DisplayColumn(low.label.removesuffix(" low"), low.kind, (*low.keys, column.key)))
        else:
            found.append(DisplayColumn(column.label, column.kind, (column.key,)))
    return found


def _ends(before: DisplayColumn, column: Column) -> bool:
    stem = column.key.removesuffix("_high")
    same = before.keys == (f"{stem}_low",) and before.kind == column.kind
    return stem != column.key and same and before.label.removesuffix(" low") == column.label.removesuffix(" high")


def cell(row: dict[str, Any], column: DisplayColumn) -> Cell:
    """What stands in `row` under `column`."""
    values = [row.get(key) for key in column.keys]
    texts = [_text(value, column.kind) for value in values]
    text = NONE if set(texts) == {NONE} else " to ".join(texts)
    return Cell(text, "" if values[0] is None else values[0])


def _text(value: Any, kind: str) -> str:
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    return FORMS[kind](value) if kind in FORMS and isinstance(value, int | float) else printable(value)


def csv_files(study: StudyResult) -> dict[str, bytes]:
    """One CSV per table, by file name: the columns' keys, every value in full precision."""
    return {name: _csv(table) for name, table in named_tables(study)}


def named_tables(study: StudyResult) -> list[tuple[str, Table]]:
    """Each table with the name of its CSV."""
    tables = study.result.tables if study.result else ()
    return [(f"{study.ident}.{name}.csv", table) for name, table in zip(slugs(t.name for t in tables), tables, strict=True)]


def _csv(table: Table) -> bytes:
    return csv_bytes([column.key for column in table.columns], ([row.get(column.key) for column in table.columns] for row in table.rows))


def study_document(study: StudyResult) -> dict[str, Any]:
    """One study in report.json."""
    words, tone = headline(study)
    document: dict[str, Any] = {"folder": study.place.name, "name": study.name, "headline": words, "tone": tone, "exit_code": study.exit_code}
    if study.result is None:
        return document
    facts = {key: value for key, value in asdict(study.result).items() if key not in ("name", "tables", "figures")}
    return document | facts | {"tables": [_table_document(name, table) for name, table in named_tables(study)]}


def _table_document(file: str, table: Table) -> dict[str, Any]:
    keys = [column.key for column in table.columns]
    rows: Sequence[dict[str, Any]] = [{key: row.get(key) for key in keys} for row in table.rows]
    return {**asdict(table), "csv": file, "rows": rows}
