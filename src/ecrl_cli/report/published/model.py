"""What the published part of the report consists of."""

from __future__ import annotations

from dataclasses import dataclass

from ecrl_cli.report.figures import Picture


@dataclass(frozen=True)
class PublishedTable:
    """`ident`: as in the file names (`table5`, `exp1`). `title` names the scale; `note`: what is wrong or contradictory in the published numbers.

    `rows`: as wide as `columns`. `setting`: what differs between the published setting and the measured one.
    """

    ident: str
    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    setting: str


@dataclass(frozen=True)
class Publication:
    """`files`: contents by path in the report's folder, the pictures' included. Empty where no published experiment was repeated."""

    files: dict[str, bytes]
    tables: tuple[PublishedTable, ...]
    pictures: tuple[Picture, ...]
