"""Tables, figures and files that a replication of published work adds to a report. Found by name,
not imported by the report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ecrl_cli.config.registry import Registry

if TYPE_CHECKING:
    from ecrl_cli.report.figures.export import Picture
    from ecrl_cli.report.tables.table import Table

_REPLICATIONS = Registry(
    "replication",
    "ecrl.replications",
    {"published": "ecrl_cli.replication.report.publication:PUBLISHED"},
)


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


class Replication(Protocol):
    """The interface of entry points in the group `ecrl.replications`. `experiments`: by suite, the
    published experiment that it belongs to.
    `arms`: by experiment, the variants that it compares.
    """

    @property
    def experiments(self) -> Mapping[str, str]: ...

    @property
    def arms(self) -> Mapping[str, Sequence[str]]: ...

    def publication(self, comparison: Any) -> Publication:
        """Tables, figures and files for the runs of a `report.model.comparison.Comparison`."""


def replication() -> Replication:
    """The published works that ship with ECRL."""
    found: Replication = _REPLICATIONS.load("published")
    return found
