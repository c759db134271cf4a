"""Books: what the judge said of thousands of changes, a line each (tests/recorded). `make test`
looks at a third, `make test-slow` at all.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from typing import TypeVar

import pytest

T = TypeVar("T")
EACH = pytest.mark.parametrize(
    "each", [pytest.param(3, id="a third"), pytest.param(1, id="all", marks=pytest.mark.slow)]
)


def compared(
    book: list[str],
    changes: Iterable[T],
    name: Callable[[T], str],
    said: Callable[[T], str],
    each: int,
) -> list[tuple[T, str, str]]:
    """Of about one change in `each`, chosen by its name, so that it is of every kind some: the
    change, its line in the book, and its line now.

    `book`: its lines; it must hold all changes under the names that they have now.
    """
    found = list(changes)
    assert [line.partition(" || ")[0] for line in book] == [name(change) for change in found], (
        "other changes than those of the book"
    )
    chosen = [
        number
        for number, line in enumerate(book)
        if zlib.crc32(line.partition(" || ")[0].encode()) % each == 0
    ]
    return [(found[number], book[number], said(found[number])) for number in chosen]
