"""The table by which a checkpointer is chosen: costs from the runs, and from the studies what those
know of it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.config.strategies import FOREIGN
from ecrl_cli.records.layout import StudyLayout
from ecrl_cli.report.build import contents
from ecrl_cli.report.model.comparison import Comparison, compare
from ecrl_cli.report.model.inputs import StudyInput, run_inputs
from ecrl_cli.report.model.run_record import read_run
from ecrl_cli.report.model.study_record import Result, StudyResult
from ecrl_cli.report.tables.checkpointers import checkpointers_table
from ecrl_cli.report.tables.table import text_of
from ecrl_cli.studies.corruption.stock_loaders import LOADERS
from ecrl_cli.studies.frame.result import ResultTable
from ecrl_cli.studies.power_loss.real_process import TORCH_SUBJECTS
from tests.runs.builder import build_blk, build_ref


@pytest.fixture(scope="module")
def race(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """A reference, a run with failures, and the same with its checkpoints said to be DCP's."""
    sweep = tmp_path_factory.mktemp("sweep")
    for build in (build_ref, build_blk):
        build(sweep)
    runs = [read_run(place, judge_anew=True) for place in run_inputs([sweep])]
    (blk,) = [run for run in runs if run.variant == "blk"]
    dcp = replace(
        blk,
        variant="dcp",
        recording=None,
        config=blk.config | {"checkpoint": blk.config["checkpoint"] | {"strategy": "dcp"}},
    )
    return compare([*runs, dcp])


def study(name: str, table: str, *rows: dict[str, Any]) -> StudyResult:
    result = Result(
        name, "id", {}, 1, 1, True, 1.0, (), (ResultTable(table, "", (), rows),), (), (), ()
    )
    return StudyResult(StudyInput(StudyLayout(Path(name)), name), name, result, {})


CORRUPTION = study(
    "corruption",
    "anchors",
    {"loader": "torch.distributed.checkpoint", "flips": 300, "raised": 7, "harmless": 0},
    {
        "loader": "the integrity check, in the random arm",
        "flips": 120,
        "raised": 100,
        "harmless": 20,
    },
)
POWER = study(
    "power-loss",
    "real-shutdown",
    {"fs": "ext4", "subject": "dcp", "n": 30, "k": 25},
    {"fs": "xfs", "subject": "dcp", "n": 30, "k": 20},
    {"fs": "ext4", "subject": "atomic_dirsync, group", "n": 60, "k": 0},
    {"fs": "ext4", "subject": "unsafe, group", "n": 60, "k": 60},
)


def rows(comparison: Comparison, *studies: StudyResult) -> dict[str, dict[str, str]]:
    table = checkpointers_table(comparison, studies)
    found = [
        {
            column.label: text_of(value, column)
            for column, value in zip(table.columns, row, strict=True)
        }
        for row in table.rows
    ]
    return {row["arm"]: row for row in found}


def test_costs_stand_beside_one_another_and_what_is_not_measured_names_its_command(
    race: Comparison,
) -> None:
    found = rows(race)
    assert list(found) == ["ref", "blk", "dcp"]
    for column in ("stall", "save", "load", "restart", "goodput", "bytes"):
        assert found["dcp"][column] == found["blk"][column] != "-"
    assert found["ref"]["restart"] == "-"
    assert {found["dcp"][column] for column in ("damage noticed", "power loss survived")} == {
        "not measured"
    }
    note = checkpointers_table(race).note
    assert "ecrl study study=corruption" in note and "ecrl study study=power-loss" in note


def test_what_the_studies_know_is_said_with_its_counts(race: Comparison) -> None:
    found = rows(race, CORRUPTION, POWER)
    assert (found["dcp"]["damage noticed"], found["dcp"]["power loss survived"]) == (
        "2.3% (7 of 300)",
        "25.0% (15 of 60)",
    )
    assert (found["blk"]["damage noticed"], found["blk"]["power loss survived"]) == (
        "100% (100 of 100)",
        "100% (60 of 60)",
    )
    assert not checkpointers_table(race, (CORRUPTION, POWER)).note
    assert "power-loss" in checkpointers_table(race, (CORRUPTION,)).note


def test_a_table_of_another_version_is_no_measurement(race: Comparison) -> None:
    found = rows(
        race,
        study("corruption", "anchors", {"loader": "torch.distributed.checkpoint", "flips": "many"}),
    )
    assert found["dcp"]["damage noticed"] == "not measured"


def test_the_report_has_it_on_the_page_in_markdown_and_as_csv(race: Comparison) -> None:
    files = contents(race)
    title = checkpointers_table(race).title
    assert (
        title in files["report.md"].decode()
        and title in files["index.html"].decode()
        and 'id="checkpointers"' in files["index.html"].decode()
    )
    assert files["checkpointers.csv"].decode().count("\n") == 4
    json.loads(files["report.json"])


def test_without_another_checkpointer_there_is_no_such_table(tmp_path: Path) -> None:
    build_blk(tmp_path)
    alone = compare([read_run(place) for place in run_inputs([tmp_path])])
    assert not checkpointers_table(alone) and "checkpointers.csv" not in contents(alone)


@pytest.mark.parametrize("name", [kind.name for kind in FOREIGN])
def test_the_studies_know_each_by_the_name_that_its_object_says(name: str) -> None:
    kind = next(kind.checkpointer for kind in FOREIGN if kind.name == name)
    assert kind and kind.loader in LOADERS and kind.subject in TORCH_SUBJECTS
