"""Every value in the records of 37 runs of all shapes, changed where a comparison turns: each check
says of it, and the figures become, what they did before (tests/recorded/values, one line a change).
Where a line differs on purpose, `python -m tests.runs.every_value` writes them anew.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.runs import every_value
from tests.runs.book import EACH, compared
from tests.runs.every_value import BOOK, Judged


@pytest.fixture(scope="module")
def judged() -> Iterator[dict[str, Judged]]:
    with every_value.runs() as found:
        yield found


@EACH
@pytest.mark.parametrize("chapter", every_value.CHAPTERS)
def test_a_changed_value_is_called_what_it_was_called_before(
    judged: dict[str, Judged], chapter: str, each: int
) -> None:
    before = (BOOK / f"{chapter}.txt").read_text(encoding="utf-8").splitlines()
    changes, said = every_value.CHAPTERS[chapter](judged)
    found = compared(before, changes, str, said, each)
    assert [now for _, _, now in found] == [line for _, line, _ in found], (
        "called otherwise; if that is meant: python -m tests.runs.every_value"
    )
