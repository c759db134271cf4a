"""Checkpoints of every layout, damaged in a thousand ways: the check refuses, the diagnosis names
and the repair mends what it did before (tests/recorded/damage, one line a damage). Where a line
differs on purpose, `python -m tests.runs.every_damage` writes them anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runs import every_damage
from tests.runs.book import EACH, compared
from tests.runs.every_damage import BOOK, damages, said

KINDS = sorted(path.stem for path in BOOK.glob("*.txt"))


@pytest.fixture(scope="module")
def checkpoints() -> Iterator[dict[str, Path]]:
    with every_damage.checkpoints() as found:
        yield found


@EACH
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_checkpoint_is_called_what_it_was_called_before(
    checkpoints: dict[str, Path], kind: str, each: int
) -> None:
    before = (BOOK / f"{kind}.txt").read_text(encoding="utf-8").splitlines()
    path = checkpoints[kind]
    found = compared(
        before,
        damages(path),
        lambda damage: damage.name,
        lambda damage: f"{damage.name} || {said(kind, path, damage)}",
        each,
    )
    assert [now for _, _, now in found] == [line for _, line, _ in found], (
        "called otherwise; if that is meant: python -m tests.runs.every_damage"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_no_flipped_bit_is_passed_and_no_repair_makes_something_else(kind: str) -> None:
    """Of the book itself, whoever wrote it last. Without the hash chain made right again, nothing
    but the untouched checkpoint passes.
    """
    lines = (BOOK / f"{kind}.txt").read_text(encoding="utf-8").splitlines()
    passed = [
        line
        for line in lines
        if line.split(" || ")[1] == "ok" and not line.startswith(("forged ", "all under the name"))
    ]
    assert passed == ["nothing || ok"]
    assert [line for line in lines if "repaired to something else" in line] == []
