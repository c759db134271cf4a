"""What failures that kill no rank leave behind is looked for, and missed where it is not there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ecrl_cli.history.load import load
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.verify.fault_plan import failures_once
from ecrl_cli.verify.verdict import INVALID, VALID, Finding
from ecrl_cli.verify.verification_input import Case
from tests.runs.faulted import (
    FAILED,
    NOT_BEREFT,
    WRONG,
    ListedBuilder,
    build_bereft,
    build_faulted,
    listed,
)
from tests.runs.sentence import told
from tests.runs.spoil import edit_lines


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RunLayout:
    return build_faulted(tmp_path_factory.mktemp("sweep"))


@pytest.fixture
def run(recorded: RunLayout, tmp_path: Path) -> RunLayout:
    shutil.copytree(recorded.root, tmp_path / "struck", symlinks=True)
    return RunLayout(tmp_path / "struck")


def judged(run: RunLayout) -> Finding:
    return failures_once(Case(load(run)))


def test_as_it_was_recorded_each_failure_is_there(run: RunLayout) -> None:
    FAILED(run)
    finding = judged(run)
    assert finding.status == VALID and finding.message.startswith(
        "4 of 5 planned failures fired"
    ), finding
    assert any(
        "entry 4 (due after 900.500 s) did not fire: the run was over" in text
        for text in finding.evidence
    )


@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_as_it_must_be_is_told(run: RunLayout, name: str) -> None:
    spoil, said = WRONG[name]
    if "save" not in name and "disk" not in name:
        FAILED(run)
    spoil(run)
    finding = judged(run)
    assert finding.status != VALID and told(finding, said), finding


@pytest.fixture(scope="module")
def killed_supervisor(tmp_path_factory: pytest.TempPathFactory) -> RunLayout:
    return build_bereft(tmp_path_factory.mktemp("sweep"))


def test_a_supervisor_that_was_killed_explains_an_end_that_nobody_saw(
    killed_supervisor: RunLayout,
) -> None:
    finding = judged(killed_supervisor)
    assert finding.status == VALID and finding.message.startswith(
        "3 of 3 planned failures fired"
    ), finding


@pytest.mark.parametrize("name", NOT_BEREFT)
def test_a_supervisor_that_lived_on_is_told(
    killed_supervisor: RunLayout, tmp_path: Path, name: str
) -> None:
    run = RunLayout(shutil.copytree(killed_supervisor.root, tmp_path / "struck", symlinks=True))
    spoil, said = NOT_BEREFT[name]
    spoil(run)
    finding = judged(run)
    assert finding.status == INVALID and told(finding, said), finding


def test_damage_that_would_have_left_nothing_to_fall_back_to_is_not_owed(tmp_path: Path) -> None:
    """A kill after step 14; of the saves of steps 6 and 12 one has failed."""
    run = ListedBuilder(tmp_path / "sole", listed("corrupt@14:1")).build()
    assert judged(run).status == INVALID
    edit_lines(
        run.attempt(0).checkpoints,
        lambda line: (
            line | {"event": "failed"}
            if (line["event"], line["global_step"]) == ("committed", 6)
            else line
        ),
    )
    assert (
        "entry 1 did not fire: there was no other checkpoint to fall back to after step 14"
        in judged(run).evidence
    )
