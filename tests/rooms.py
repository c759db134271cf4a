"""The rooms of src/ecrl_cli, as the contract of import-linter in pyproject.toml lists them."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
CONTRACT = "Rooms: imports point down"
# the package itself, seen by pytest; no room
PLUGIN = "pytest_plugin"


def rooms(source: Path = ROOT) -> list[str]:
    """The rooms of the checkout `source`, lowest first. KeyError: it has no such contract."""
    project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (layers,) = (each["layers"] for each in contracts if each["name"] == CONTRACT)
    return [room for room in reversed(layers) if room != PLUGIN]
