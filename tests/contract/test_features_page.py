"""The page of what the published works contain holds: its commands compose, what it points at is
there, and it is made from its source.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

import pytest

from tests.contract.test_docs_commands import CHECKED, check
from tests.features_page import PAGE, ROOT, STATES, Row, features, rendered

# what may show something, unlike source or configuration
EVIDENCE = ("docs/", "tests/", "README.md", "CONTRIBUTING.md", "Makefile")
LONGEST = 15  # words of a row's `what`
# Commands that stand in other documents too are composed with those.
COMMANDS = sorted(
    {
        words
        for text in features().commands.values()
        if (words := tuple(shlex.split(text))) not in CHECKED
    }
)


def wrong(row: Row) -> list[str]:
    """What is wrong with a row."""
    found = [f"no such state: {row.state}"] if row.state not in STATES else []
    found += (
        [f"no such command: {row.run}"] if row.run and row.run not in features().commands else []
    )
    found += ["no command"] if not row.run and row.state != "not built" else []
    found += (
        ["nothing shows it"]
        if row.state in ("shown", "contradicted")
        and not any(path.startswith(EVIDENCE) for path in row.see)
        else []
    )
    found += (
        ["it is not said why, or what is missing"] if row.state != "shown" and not row.note else []
    )
    found += ["too long"] if len(row.what.split()) > LONGEST else []
    return found + [f"not there: {path}" for path in row.see if not there(path)]


def there(path: str) -> bool:
    name, _, test = path.partition("::")
    file = ROOT / name
    return file.is_file() and (
        not test
        or re.search(rf"^def {test}\(", file.read_text(encoding="utf-8"), re.MULTILINE) is not None
    )


def test_every_row_says_how_far_it_is_shown_and_where() -> None:
    assert {row.id: said for row in features().rows if (said := wrong(row))} == {}


def test_every_number_stands_once_and_in_order() -> None:
    assert [row.id for row in features().rows] == [f"SF-{number:03d}" for number in range(1, 309)]


def test_every_command_is_of_a_row() -> None:
    assert set(features().commands) == {row.run for row in features().rows if row.run}


def test_the_page_is_made_from_its_source() -> None:
    assert PAGE.read_text(encoding="utf-8") == rendered(features()), "python -m tests.features_page"


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_of_the_page_can_be_given(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    check(words)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"state": "done"}, "no such state: done"),
        ({"run": "exp5"}, "no such command: exp5"),
        ({"run": ""}, "no command"),
        ({"see": ("src/ecrl_cli/errors.py",)}, "nothing shows it"),
        ({"state": "partial", "note": ""}, "it is not said why, or what is missing"),
        ({"see": ("docs/nowhere.md",)}, "not there: docs/nowhere.md"),
        (
            {"see": ("tests/unit/test_data_order.py::test_nothing",)},
            "not there: tests/unit/test_data_order.py::test_nothing",
        ),
        ({"what": "a word " * 8}, "too long"),
    ],
)
def test_a_wrong_row_would_be_found(change: dict[str, str], said: str) -> None:
    row = Row("SF-001", "S0 title", "its name", "shown", "help", ("README.md",), "another name")
    assert wrong(row) == [] and wrong(replace(row, **change)) == [said]  # type: ignore[arg-type]
