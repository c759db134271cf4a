"""Every value in the records of 37 runs of all shapes, changed where a comparison turns: each check says of it, and the figures become, what they did
before (tests/recorded/values, one line a change). Where a line differs on purpose, `python -m tests.runs.every_value` writes them anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.runs import every_value
from tests.runs.every_value import BOOK, Judged


@pytest.fixture(scope="module")
def judged() -> Iterator[dict[str, Judged]]:
    with every_value.runs() as found:
        yield found


@pytest.mark.parametrize("chapter", [every_value.judged, every_value.computed], ids=lambda chapter: str(chapter.__name__))
def test_a_changed_value_is_called_what_it_was_called_before(judged: dict[str, Judged], chapter: every_value.Chapter) -> None:
    before = (BOOK / f"{chapter.__name__}.txt").read_text(encoding="utf-8").splitlines()
    assert list(chapter(judged)) == before, "called otherwise; if that is meant: python -m tests.runs.every_value"
