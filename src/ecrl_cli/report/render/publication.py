"""Additions of a replication of published work to a report: tables, figures and files."""

from __future__ import annotations

from dataclasses import dataclass

from ecrl_cli.report.model.picture import Picture
from ecrl_cli.report.tables.table import Table


@dataclass(frozen=True)
class PublishedTable:
    """`ident`: as in the file names (`table5`, `exp1`). The table's title names the scale, its note
    the errors in the published numbers.

    `setting`: how the published setting differs from the measured one.
    """

    ident: str
    table: Table
    setting: str


@dataclass(frozen=True)
class Publication:
    """`files`: contents by path in the report's folder, including the figures. Empty if no
    published experiment was repeated.
    """

    files: dict[str, bytes]
    tables: tuple[PublishedTable, ...]
    pictures: tuple[Picture, ...]
