"""Tables of a kept report that stand on its experiment's page, with the units that a reader
expects.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, field
from pathlib import Path

from ecrl_cli.report.tables.renderers import markdown_of
from ecrl_cli.report.tables.table import Column, Table

# of what a CSV holds: seconds, shares, differences of shares, bytes
UNITS = {"ms": 1e3, "%": 1e2, "points": 1e2, "MB": 1e-6}


@dataclass(frozen=True)
class KeptTable:
    """`file`: the CSV, below the experiment's folder. `columns`: what is shown of it, in this
    order, each with its heading; a heading that ends with a unit of UNITS in parentheses has its
    values in that unit. `where`: only the rows with these values.
    """

    file: str
    title: str
    columns: dict[str, str]
    where: dict[str, str] = field(default_factory=dict)

    def markdown(self, folder: Path) -> list[str]:
        """KeyError: the file has no such column."""
        with (folder / self.file).open(encoding="utf-8", newline="") as file:
            rows = [
                row
                for row in csv.DictReader(file)
                if all(row[name] == value for name, value in self.where.items())
            ]
        values = {
            name: [_value(row[name], _unit(heading)) for row in rows]
            for name, heading in self.columns.items()
        }
        columns = tuple(
            Column(heading, "text" if any(isinstance(v, str) for v in values[name]) else "measured")
            for name, heading in self.columns.items()
        )
        table = Table(self.title, columns, tuple(zip(*values.values(), strict=True)))
        return [f"**{self.title}** (`{self.file}`)", "", *markdown_of(table), ""]


# What a page shows of every sweep.
ARMS = KeptTable(
    "summary.csv",
    "The arms, means over their runs with 95% intervals where there are several",
    {
        "suite": "suite",
        "arm": "arm",
        "n": "runs",
        "goodput_mean": "goodput (steps/s)",
        "goodput_ci95_low": "from",
        "goodput_ci95_high": "to",
        "wall_s_mean": "wall time (s)",
        "stall_per_checkpoint_s_mean": "stall of a checkpoint (ms)",
        "restarts_mean": "restarts",
        "replayed_steps_mean": "steps done again",
    },
)


def _unit(heading: str) -> float:
    found = re.search(r"\(([^()]+)\)$", heading)
    return UNITS.get(found.group(1), 1.0) if found else 1.0


def _value(text: str, unit: float) -> float | str | None:
    """A number in its unit; anything else as it stands. None: missing."""
    try:
        return float(text) * unit
    except ValueError:
        return text or None
