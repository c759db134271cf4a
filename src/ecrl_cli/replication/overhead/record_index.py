"""The study's records by arm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ecrl_cli.config.studies import RecoveryOverhead
from ecrl_cli.replication.overhead.measured import Recording
from ecrl_cli.replication.overhead.parts import Parts
from ecrl_cli.replication.overhead.strategies import Scene
from ecrl_cli.studies.frame.study import Record

Row = dict[str, Any]


@dataclass(frozen=True)
class RecordIndex:
    """Indexed access to the records, for findings."""

    config: RecoveryOverhead
    models: dict[str, Parts]
    recordings: list[Recording]
    records: Sequence[Record]

    def of(self, kind: str) -> list[Record]:
        return [record for record in self.records if record.facts["kind"] == kind]

    def scene(self, workers: int) -> Scene:
        return Scene(workers, self.config.casualties, self.config.replace_s, self.config.spare_share)

    @property
    def least(self) -> int:
        return min(self.config.workers)

    @property
    def most(self) -> int:
        return max(self.config.workers)

    def jobs(self) -> list[Row]:
        """Every strategy in every cell: the cell's facts and its numbers. Fatal is None for strategies that roll back at every failure."""
        found = []
        for record in self.of("scale"):
            cell = {key: record.facts[key] for key in ("model", "minutes", "workers", "mtbf")}
            found += [{**cell, **row} for row in record.found["rows"]]
        return found

    def pairs(self) -> list[Row]:
        """Every comparison of two strategies in one cell."""
        return [{**record.facts, **pair} for record in self.of("scale") for pair in record.found["pairs"]]

    def optima(self, shape: float = 1.0) -> list[Row]:
        """Every finished search with its cell."""
        found = [{**record.facts, **record.found["optimum"]} for record in self.of("optimum") if record.found["optimum"]]
        return [row for row in found if row["shape"] == shape]

    def checks(self, planted: bool) -> list[Row]:
        return [{"case": r.facts["case"], **r.found} for r in self.of("check") if r.facts["case"].startswith("planted") == planted]

    def recorded(self) -> list[Row]:
        return [{**record.facts, **record.found} for record in self.of("recorded")]

    def predicted(self) -> list[Row]:
        """Recorded failures predicted from others; a single recorded failure predicts nothing."""
        return [row for row in self.recorded() if row["from"]]


def cell_name(row: Row) -> str:
    return f"{row['model']}, MTBF {row['minutes']} min, {row['workers']} workers"
