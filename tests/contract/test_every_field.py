"""Every field of the records of 14 real runs, changed: each is judged as it was judged before
(tests/recorded/verdicts, one line a change).

No change may be called valid but what `tests/runs/free_fields.py` excuses, and none may make a
check raise.

Where a line differs on purpose, `python -m tests.runs.every_field` writes them anew, and the diff
is what is to be read.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ecrl_cli.verify.verify_run import verify_run
from tests.runs import every_field
from tests.runs.book import EACH, compared
from tests.runs.every_field import BOOK, Change, Judge, is_hole
from tests.runs.free_fields import FREE, TOLERANCES, excuse

RUNS = sorted(path.stem for path in BOOK.glob("*.txt"))


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with every_field.sweep() as folder:
        yield Judge(folder)


@pytest.fixture(scope="module")
def by_run(judge: Judge) -> dict[str, list[Change]]:
    found: dict[str, list[Change]] = {}
    for change in every_field.chosen(judge.folder):
        found.setdefault(change.run, []).append(change)
    return found


@pytest.mark.parametrize("run", RUNS)
def test_an_untouched_run_is_valid(judge: Judge, run: str) -> None:
    assert verify_run(judge.folder / run).status == "valid"


@EACH
@pytest.mark.parametrize("run", RUNS)
def test_a_changed_field_is_judged_as_before(
    judge: Judge, by_run: dict[str, list[Change]], run: str, each: int
) -> None:
    before = (BOOK / f"{run}.txt").read_text(encoding="utf-8").splitlines()
    found = compared(
        before, by_run[run], str, lambda change: f"{change} || {judge.verdict(change)}", each
    )
    assert not [now for change, _, now in found if is_hole(change, now.split(" || ", 1)[1])]
    assert [now for _, _, now in found] == [line for _, line, _ in found], (
        "judged otherwise; if that is meant: python -m tests.runs.every_field"
    )


def test_every_excuse_is_needed(by_run: dict[str, list[Change]]) -> None:
    """A row that excuses nothing in the book would excuse the next hole."""
    needed = set()
    for run, changes in by_run.items():
        lines = (BOOK / f"{run}.txt").read_text(encoding="utf-8").splitlines()
        needed |= {
            excuse(change)
            for change, line in zip(changes, lines, strict=True)
            if line.split(" || ", 1)[1].startswith("valid")
        }
    assert needed == {*FREE, *TOLERANCES}
