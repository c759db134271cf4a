"""A study's tables: as recorded, for CSV and JSON, and with the ends of an interval in one column,
for readers.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from ecrl_cli.report.model.study_record import StudyResult, headline, slugs
from ecrl_cli.report.tables.renderers import csv_of
from ecrl_cli.report.tables.table import Cell, Column, Row, Table, Value, scalar
from ecrl_cli.studies.frame.result import ResultTable


def recorded_tables(study: StudyResult) -> list[Table]:
    """Each table as recorded, with the name of its CSV."""
    tables = study.result.tables if study.result else ()
    return [
        _recorded(f"{study.ident}.{name}.csv", table)
        for name, table in zip(slugs(t.name for t in tables), tables, strict=True)
    ]


def _recorded(file: str, table: ResultTable) -> Table:
    columns = tuple(Column(column.label, column.kind, key=column.key) for column in table.columns)
    rows = tuple(tuple(row.get(column.key) for column in table.columns) for row in table.rows)
    return Table(table.title, columns, rows, table.note, file)


def shown_tables(study: StudyResult) -> list[Table]:
    """The recorded tables with adjacent columns `X_low` and `X_high` joined."""
    return [_joined(table) for table in recorded_tables(study)]


def _joined(table: Table) -> Table:
    places = range(len(table.columns))
    lows = {at for at in places[:-1] if _ends(table.columns[at], table.columns[at + 1])}
    kept = [at for at in places if at - 1 not in lows]
    columns = tuple(
        (
            replace(column := table.columns[at], label=column.label.removesuffix(" low"))
            if at in lows
            else table.columns[at]
        )
        for at in kept
    )
    return Table(
        table.title,
        columns,
        tuple(tuple(_value(row, at, at in lows) for at in kept) for row in table.rows),
        table.note,
        table.file,
    )


def _ends(low: Column, high: Column) -> bool:
    stem, label = low.key.removesuffix("_low"), low.label.removesuffix(" low")
    return (
        stem != low.key
        and high.key == f"{stem}_high"
        and low.kind == high.kind
        and label == high.label.removesuffix(" high")
    )


def _value(row: Row, at: int, spans: bool) -> Value:
    """The value at `at`, or the interval that begins there; if one end is missing, the other is
    shown as text.
    """
    if not spans or (row[at] is None and row[at + 1] is None):
        return row[at]
    low, high = scalar(row[at]), scalar(row[at + 1])
    return (
        Cell(None, "", low, high)
        if isinstance(low, int | float) and isinstance(high, int | float)
        else Cell(low, text=f"{low} to {high}")
    )


def csv_files(study: StudyResult) -> dict[str, bytes]:
    """One CSV per table, by file name: column keys, and every value in full precision."""
    return {table.file: csv_of(table) for table in recorded_tables(study)}


def study_document(study: StudyResult) -> dict[str, Any]:
    """One study in report.json."""
    words, tone = headline(study)
    document: dict[str, Any] = {
        "folder": study.input.name,
        "name": study.name,
        "headline": words,
        "tone": tone,
        "exit_code": study.exit_code,
    }
    if study.result is None:
        return document
    facts = {
        key: value
        for key, value in asdict(study.result).items()
        if key not in ("name", "tables", "figures")
    }
    named = zip(study.result.tables, recorded_tables(study), strict=True)
    tables = []
    for table, recorded in named:
        rows = [{column.key: row.get(column.key) for column in table.columns} for row in table.rows]
        tables.append({**asdict(table), "csv": recorded.file, "rows": rows})
    return document | facts | {"tables": tables}
