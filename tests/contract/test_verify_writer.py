"""What the death of a background writer, or a pointer that could not be moved, excuses, and what it
does not.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.checkpoint.format.names import LEASE
from ecrl_cli.config.codec import encode
from ecrl_cli.history.load import load
from ecrl_cli.records.events import CheckpointLine
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.verify.checkpoints import checkpoints_accounted
from ecrl_cli.verify.fault_plan import failures_once
from ecrl_cli.verify.verdict import INVALID, VALID, Finding
from ecrl_cli.verify.verification_input import Case
from tests.runs.builder import build_blk
from tests.runs.faulted import ListedBuilder, listed
from tests.runs.sentence import told
from tests.runs.spoil import append, edit_json, line_at

BEHIND = "names step_00000018, the newest checkpoint of the completed run is step_00000024"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`blk`: blocking, three attempts. `ovl`: with a background writer, which the plan kills
    once.
    """
    folder = tmp_path_factory.mktemp("runs")
    build_blk(folder)
    config = listed("writer@12%after_rename")
    run = ListedBuilder(
        folder / "ovl",
        replace(config, checkpoint=replace(config.checkpoint, strategy="overlapped")),
    )
    run.build()
    run.fault_fired(0, 0, at_step=12, at=line_at(run.layout.attempt(0).checkpoints, 12)["at"])
    return folder


@pytest.fixture
def sweep(runs: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(runs, tmp_path / "runs", symlinks=True))


def writers(run: RunLayout, deaths: int | None) -> list[str]:
    """What is said of the writers of a run whose only session had so many deaths of them."""
    edit_json(run.supervisor, lambda record: record["sessions"][0].update(writer_deaths=deaths))
    finding = failures_once(Case(load(run)))
    return [
        text.rpartition(" - ")[2]
        for text in (finding.message, *finding.evidence)
        if "background writers" in text
    ]


@pytest.mark.parametrize(
    ("deaths", "said"),
    [
        (None, []),
        (0, ["1 background writers were killed by the plan in session 0, 0 died"]),
        (1, []),
        (4, []),  # whatever else killed it: a first one and three replacements were started
        (5, ["5 background writers are said to have died in session 0, at most 4 were started"]),
    ],
)
def test_as_many_writers_died_as_were_killed_and_no_more_than_were_started(
    sweep: Path, deaths: int | None, said: list[str]
) -> None:
    assert writers(RunLayout(sweep / "ovl"), deaths) == said


def point_back(run: RunLayout) -> None:
    """Both pointers name the checkpoint before the newest."""
    edit_json(
        run.checkpoints / "latest.json",
        lambda pointer: pointer | {"path": "step_00000018", "global_step": 18, "epoch": 1},
    )
    (run.checkpoints / "latest_ok").unlink()
    (run.checkpoints / "latest_ok").symlink_to("step_00000018")


def pointers(run: RunLayout) -> Finding:
    return checkpoints_accounted(Case(load(run)))


def not_moved(run: RunLayout, step: int) -> dict[str, Any]:
    attempt = len(run.attempts()) - 1
    at = line_at(run.attempt(attempt).checkpoints, 24)
    document: dict[str, Any] = encode(
        CheckpointLine(
            "pointer_failed", step, attempt, at["at"], at["time"], reason="E-storage rename: EIO"
        )
    )
    return document


def test_a_pointer_that_stayed_behind_is_told_unless_the_journal_says_why(sweep: Path) -> None:
    run = RunLayout(sweep / "blk")
    assert pointers(run).status == VALID
    point_back(run)
    assert pointers(run).status == INVALID and any(
        BEHIND in text for text in (pointers(run).message, *pointers(run).evidence)
    )
    append(run.attempt(2).checkpoints, not_moved(run, 24))
    assert pointers(run).status == VALID, pointers(run)


def test_a_pointer_that_could_not_be_moved_excuses_none_behind_it(sweep: Path) -> None:
    """What could not be moved for one checkpoint was moved for the next, or its journal says so
    again.
    """
    run = RunLayout(sweep / "blk")
    point_back(run)
    journal, earlier = run.attempt(2).checkpoints, json.dumps(not_moved(run, 18)) + "\n"
    journal.write_text(earlier + journal.read_text())
    assert any(BEHIND in text for text in (pointers(run).message, *pointers(run).evidence))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("latest.json", "latest.json is no pointer to a checkpoint and its step"),
        (LEASE, f"checkpoints/{LEASE} names no attempt"),
    ],
)
def test_a_small_file_that_is_no_json_is_told(sweep: Path, name: str, words: str) -> None:
    run = RunLayout(sweep / "blk")
    (run.checkpoints / name).write_text("{")
    finding = pointers(run)
    assert finding.status == INVALID and told(finding, words), finding


@pytest.mark.parametrize(("deaths", "told"), [(0, True), (1, False), (None, False)])
def test_only_a_writer_that_died_leaves_pointers_behind(
    sweep: Path, deaths: int | None, told: bool
) -> None:
    run = RunLayout(sweep / "ovl")
    point_back(run)
    edit_json(run.supervisor, lambda record: record["sessions"][0].update(writer_deaths=deaths))
    assert any(BEHIND in text for text in (pointers(run).message, *pointers(run).evidence)) == told
