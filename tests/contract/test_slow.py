"""The list of what `make test` leaves out names tests that are there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests import environments, slow

TESTS = slow.TESTS


def test_each_entry_names_a_test_that_was_collected(request: pytest.FixtureRequest) -> None:
    """Of the files that were collected together with this one: with `make test` all. Not where only
    some tests of a file were asked for.
    """
    some = request.config.getoption("lf", False) or any(
        "::" in word for word in request.config.args
    )
    assert some or request.config.stash[slow.MISSING] == []


def test_a_name_that_is_not_there_is_noticed(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(slow.SLOW, "contract/test_slow.py::test_gone", ())
    monkeypatch.setitem(
        slow.SLOW,
        "contract/test_slow.py::test_each_entry_names_a_test_that_was_collected",
        ("a case",),
    )
    own = [item for item in request.session.items if item.path == Path(__file__)]
    config = SimpleNamespace(stash=pytest.Stash())
    slow.mark(cast(pytest.Config, config), own)
    assert [case for _, case in config.stash[slow.MISSING]] == ["a case", ""]


@pytest.mark.parametrize("name", slow.SLOW)
def test_an_entry_is_a_test_of_its_file(name: str) -> None:
    file, _, test = name.partition("::")
    assert f"def {test}(" in (TESTS / file).read_text(encoding="utf-8")


def test_no_environment_asks_for_a_test_that_is_left_out() -> None:
    """`make test-capabilities` would pass without having run it."""
    asked = {
        name
        for environment in environments.ENVIRONMENTS.values()
        for name in environment.tests
        if "::" in name
    }
    assert asked and not {name for name in asked if slow.SLOW.get(name) == ()}


def test_what_is_left_out_is_run_by_make_test_slow() -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-m",
        "slow",
        str(TESTS / "unit" / "test_session_guards.py"),
    ]
    found = subprocess.run(
        command, cwd=TESTS.parent, capture_output=True, text=True, check=True
    ).stdout
    assert (
        "test_a_test_that_reaches_its_limit_fails_alone" in found
        and "test_an_interrupted_session" not in found
    )
