"""The faults that `make mutants` plants: each is one edit, compiles, and is tried by the tests of
its line.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.__main__ import LinesToTests, _defined, _given
from tests.mutants.faults import Fault, faults_of

SOURCE = '''"""A module."""

LIMIT = 3
WORDS = ("a",
         "b")


def first(values: list[int], most: int = 2) -> int:
    """The first that is small enough; ValueError if none is."""
    for value in values:
        if not value < most or value == LIMIT:
            continue
        print(value, sep="é")
        return values[1:][0]
    raise ValueError(f"none of {len(values) + 1}")
'''


def test_every_fault_is_one_edit_that_compiles() -> None:
    found = faults_of("a.py", SOURCE.encode())
    assert {(fault.before, fault.after) for fault in found} == {
        ("3", "(4)"),
        ("value < most", "(value <= most)"),
        ("value == LIMIT", "(value != LIMIT)"),
        ("not value < most", "(value < most)"),
        *(
            ("not value < most or value == LIMIT", f"({after})")
            for after in (
                "value == LIMIT",
                "not value < most",
                "not value < most and value == LIMIT",
            )
        ),
        *(("not value < most or value == LIMIT", f"({constant})") for constant in (True, False)),
        ("continue", "break"),
        ("continue", "pass"),
        ('print(value, sep="é")', "pass"),
        ('print(value, sep="é")', "(print(value))"),
        ("0", "(1)"),
        ("1", "(2)"),
        ('raise ValueError(f"none of {len(values) + 1}")', "pass"),
    }
    for fault in found:
        planted = fault.planted(SOURCE.encode()).decode()
        assert planted != SOURCE and planted.count("\n") == SOURCE.count("\n")
        assert SOURCE.splitlines()[fault.line - 1].find(fault.before.splitlines()[0]) >= 0


def test_a_fault_given_by_hand_is_found_by_its_text_and_its_line(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    path.write_text(
        json.dumps(
            [
                {"file": "a.py", "line": 11, "before": "value", "after": "most"},
                {"file": "a.py", "before": '"b"', "after": '"c"'},
            ]
        )
    )
    one, other = _given(path, {"a.py": SOURCE})
    assert (one.line, other.line, other.function) == (11, 5, "<module>")
    assert other.planted(SOURCE.encode()).decode() == SOURCE.replace('"b"', '"c"')
    path.write_text(json.dumps([{"file": "a.py", "before": "value", "after": "most"}]))
    with pytest.raises(SystemExit, match=r"is there \d+ times: give its line"):
        _given(path, {"a.py": SOURCE})


def test_a_mutant_is_tried_by_the_tests_of_its_line_and_a_constant_by_those_of_its_users() -> None:
    lines = {
        "a.py": {
            11: frozenset({"t.py::narrow", "t.py::wide"}),
            13: frozenset({"t.py::slow", "t.py::torch_checkpointing"}),
        }
    }
    seconds = {
        "t.py::narrow": 1.0,
        "t.py::wide": 0.1,
        "t.py::slow": 1e6,
        "t.py::torch_checkpointing": 0.1,
    }
    tests = LinesToTests(
        seconds, lines, Counter({"t.py::narrow": 1, "t.py::wide": 9, "t.py::slow": 2})
    )
    sources = {"a.py": SOURCE}
    assert tests.against(Fault("a.py", "first", 11, 11, 0, 0, "", ""), sources) == [
        "t.py::narrow",
        "t.py::wide",
    ]
    assert tests.against(Fault("a.py", "first", 13, 13, 0, 0, "", ""), sources) == []
    assert _defined(SOURCE, 3) == "LIMIT" and _defined(SOURCE, 11) == ""
    assert tests.against(Fault("a.py", "<module>", 3, 3, 0, 0, "", ""), sources) == [
        "t.py::narrow",
        "t.py::wide",
    ]
