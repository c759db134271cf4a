"""The ways to recover side by side: a line per run, from what its metrics say."""

from __future__ import annotations

from pathlib import Path

import pytest

from ecrl_cli.report.model.comparison import Comparison, compare
from ecrl_cli.report.model.inputs import run_inputs
from ecrl_cli.report.model.run_record import read_run
from ecrl_cli.report.render.markdown import markdown
from ecrl_cli.report.tables.records import CSV_FILES
from ecrl_cli.report.tables.renderers import csv_of
from ecrl_cli.report.tables.runs import recoveries_table
from ecrl_cli.report.tables.table import records_table, text_of
from ecrl_cli.report.text.summary import summarize
from tests.runs.builder import build_blk, build_ref
from tests.runs.survived import LOSSY, Death, SurvivedBuilder, build_rollback, build_spared


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """A reference and the three ways to recover from the same failure."""
    sweep = tmp_path_factory.mktemp("sweep")
    for build in (build_ref, build_rollback, build_spared):
        build(sweep)
    SurvivedBuilder(sweep / "lossy", LOSSY, (Death(9, first=(0,), spares=1),)).build()
    return compared(sweep)


def compared(sweep: Path) -> Comparison:
    return compare([read_run(place) for place in run_inputs([sweep])])


def row(shown: Comparison, arm: str) -> dict[str, str]:
    table = recoveries_table(shown)
    rows = [
        {
            column.label: text_of(value, column)
            for column, value in zip(table.columns, row, strict=True)
        }
        for row in table.rows
    ]
    return next(row for row in rows if row["arm"] == arm)


def test_a_line_per_run_says_what_each_way_costs(live: Comparison) -> None:
    counted = ("recoveries", "survived", "replayed", "given up", "lost samples")
    assert row(live, "rollback")["recovery"] == "immediate rollback, 2 spares"
    assert [row(live, "rollback")[name] for name in counted] == ["2", "2", "0", "1", "0"]
    assert [row(live, "spared")[name] for name in counted] == ["1", "0", "2", "0", "0"]
    assert [row(live, "lossy")[name] for name in counted] == ["1", "1", "0", "0", "4"]
    assert row(live, "lossy")["per recovery"] == "535 ms"
    assert recoveries_table(live).title in markdown(live, summarize(live), ())


def test_the_answer_tells_what_was_given_up(live: Comparison) -> None:
    assert (
        "In 3 recoveries ranks went on with the state in their memory; 4 samples were lost."
        in " ".join(summarize(live).sentences)
    )


def test_where_every_run_restarts_from_its_checkpoint_there_is_no_such_table(
    tmp_path: Path,
) -> None:
    for build in (build_ref, build_blk):
        build(tmp_path)
    assert not recoveries_table(compared(tmp_path)).rows


def test_every_recovery_is_in_a_file(live: Comparison) -> None:
    header, *lines = csv_of(records_table(CSV_FILES["recoveries.csv"](live))).decode().splitlines()
    assert header.endswith(
        "attempt,way,resumed_from_step,joined,lost_samples,given_up_steps,seconds,ranks_before,ranks_after"
    )
    assert (
        len(lines) == 4
        and any(",1,survivors,8,1,0,1," in line for line in lines)
        and any(",1,checkpoint,6,1,0,0," in line for line in lines)
    )
