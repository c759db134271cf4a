"""What a replication of published work adds to a report: tables, figures and files. The report finds it by name, and imports none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ecrl_cli.config.registry import Registry
from ecrl_cli.report.figures.export import Picture
from ecrl_cli.report.tables.table import Table

_REPLICATIONS = Registry("replication", "ecrl.replications", {"published": "ecrl_cli.replication.report.publication:PUBLISHED"})


@dataclass(frozen=True)
class PublishedTable:
    """`ident`: as in the file names (`table5`, `exp1`). The table's title names the scale, its note what is wrong in the published numbers.

    `setting`: what differs between the published setting and the measured one.
    """

    ident: str
    table: Table
    setting: str


@dataclass(frozen=True)
class Publication:
    """`files`: contents by path in the report's folder, the pictures' included. Empty where no published experiment was repeated."""

    files: dict[str, bytes]
    tables: tuple[PublishedTable, ...]
    pictures: tuple[Picture, ...]


class Replication(Protocol):
    """What an entry point of the group `ecrl.replications` stands for."""

    def publication(self, comparison: Any) -> Publication:
        """Tables, figures and files for the runs of a `report.model.comparison.Comparison`."""

    def experiment(self, suite: str) -> str:
        """The published experiment that a suite of this name is part of; empty where it is of none."""

    def arms(self, experiment: str) -> Sequence[str]:
        """The variants that a published experiment compares."""


def replication() -> Replication:
    """The published works that ship with ECRL."""
    found: Replication = _REPLICATIONS.load("published")
    return found
