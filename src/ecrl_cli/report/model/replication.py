"""Tables, figures and files that a replication of published work adds to a report. Found by name,
not imported by the report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ecrl_cli.config.registry import Registry

_REPLICATIONS = Registry(
    "replication",
    "ecrl.replications",
    {"published": "ecrl_cli.replication.report.publication:PUBLISHED"},
)


class Replication(Protocol):
    """The interface of entry points in the group `ecrl.replications`. `experiments`: by suite, the
    published experiment that it belongs to.
    `arms`: by experiment, the variants that it compares.
    """

    @property
    def experiments(self) -> Mapping[str, str]: ...

    @property
    def arms(self) -> Mapping[str, Sequence[str]]: ...

    def publication(self, comparison: Any) -> Any:
        """The `report.render.publication.Publication` of the runs of a
        `report.model.comparison.Comparison`.
        """


def replication() -> Replication:
    """The published works that ship with ECRL."""
    found: Replication = _REPLICATIONS.load("published")
    return found
