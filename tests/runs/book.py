"""Books: what the judge said of thousands of changes, a line each (tests/recorded). `make test` looks at every third, `make test-slow` at all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import pytest

T = TypeVar("T")
EACH = pytest.mark.parametrize("each", [pytest.param(3, id="a third"), pytest.param(1, id="all", marks=pytest.mark.slow)])


def some(lines: Iterable[T], each: int) -> list[T]:
    """Every `each`-th of `lines`, from the first on."""
    return list(lines)[::each]
