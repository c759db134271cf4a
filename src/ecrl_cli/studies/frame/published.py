"""The published numbers that studies show beside their own (studies/published.yaml)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def published(study: str) -> dict[str, Any]:
    """The numbers published for `study`, as printed."""
    found: dict[str, Any] = yaml.safe_load(
        Path(__file__).parents[1].joinpath("published.yaml").read_text(encoding="utf-8")
    )[study]
    return found
