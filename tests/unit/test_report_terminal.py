"""What the terminal and the first screen say: few lines whatever the size of a sweep, the noise as
a line and no loss, intervals that can be.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ecrl_cli.metrics.statistics import summary
from ecrl_cli.report.model.comparison import Comparison
from ecrl_cli.report.model.spans import amounts, span
from ecrl_cli.report.render.markdown import FEW, MOST_LINES, terminal
from ecrl_cli.report.render.opening import opening
from ecrl_cli.report.render.page import MOST_DETAILED, Figures, render
from ecrl_cli.report.tables.comparisons import tables
from ecrl_cli.report.tables.runs import NOTHING_TWICE, arms_brief
from ecrl_cli.report.tables.table import Column, mean_cell, text_of
from ecrl_cli.report.text.summary import MOST_FIRST, summarize
from tests.unit.report_runs import (
    SEEDS,
    Plan,
    arms,
    compared,
    full_sweep,
    make_run,
    make_sweep,
    timed,
)

PAGE = Path("index.html")


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """A suite of five arms and three seeds; nobody changes it."""
    return full_sweep(tmp_path_factory.mktemp("one"), suites=("one",))


def said(comparison: Comparison, *, every_run: bool = False) -> list[str]:
    return terminal(
        comparison, PAGE, headline=summarize(comparison).headline, every_run=every_run
    ).splitlines()


def test_it_has_the_headline_the_arms_the_floor_and_the_path(one: Comparison) -> None:
    lines = said(one)
    assert lines[0].startswith("Overlapped beats blocking") and lines[-1] == "report: index.html"
    assert [line.split()[1] for line in lines if line.startswith("  one ")] == [
        "clean",
        "ref",
        "blk",
        "ovl",
    ]
    assert len(lines) < 15 and not any("1337" in line for line in lines)


def test_every_run_has_a_row_if_asked_for(one: Comparison) -> None:
    lines = said(one, every_run=True)
    assert (
        sum(
            "valid" in line and re.search(r"\b(1337|2027|4242)\b", line) is not None
            for line in lines
        )
        == 15
    )


def test_the_repeated_reference_is_the_noise_floor_and_no_loss(one: Comparison) -> None:
    lines = said(one)
    (floor,) = [line for line in lines if "noise floor" in line]
    assert (
        floor.strip()
        == "noise floor of goodput, one: 2.9% for a mean of 3 pairs (3 pairs of ref2 against ref)"
    )
    assert not any(line.split()[1:2] == ["ref2"] for line in lines)
    shown = [table for table in tables(one) if "compared" in table.title]
    assert shown and not any(
        row[1].value == "ref2 against ref"
        for table in shown
        for row in table.rows
        if hasattr(row[1], "value")
    )


def test_without_a_repetition_it_says_that_the_noise_was_not_measured(tmp_path: Path) -> None:
    make_sweep(tmp_path, arms())
    assert f"  {NOTHING_TWICE}" in said(compared(tmp_path))


def test_a_reference_that_was_repeated_with_one_seed_lost_nothing(tmp_path: Path) -> None:
    make_sweep(tmp_path, [*arms(), Plan("ref2", kills=())])
    timed(tmp_path / "digits-cnn-kill-ref2-s1337", 20.0)
    assert not any("ref2 is" in sentence for sentence in summarize(compared(tmp_path)).sentences)


def test_many_arms_are_cut_and_left_out_runs_are_counted(tmp_path: Path) -> None:
    for every in range(2, MOST_LINES + 5):
        make_run(tmp_path / f"run-{every:02}", Plan("custom", steps=60, every=every, kills=()))
    for number in range(FEW + 3):
        (tmp_path / f"unbegun-{number}").mkdir()
        (tmp_path / f"unbegun-{number}" / "metrics.json").write_text("{}")
    lines = said(compared(tmp_path))
    assert sum(line.startswith("  digits-cnn-kill  every ") for line in lines) == MOST_LINES
    assert "  ... 3 more rows in summary.csv." in lines and "... and 3 more runs: --runs" in lines
    assert sum(line.startswith("not compared: ") for line in lines) == FEW


def test_of_two_values_the_range_is_shown_and_no_duration_is_below_zero() -> None:
    assert span(summary([1.0])) is None
    assert span(summary([1.0, 3.0])) == pytest.approx((1.0, 3.0))
    few = summary([0.1, 0.1, 4.0])
    assert few.low is not None and few.low < 0 and span(amounts([0.1, 0.1, 4.0])) == (0.0, few.high)
    assert span(amounts([-1.0, 0.1, 4.0])) == span(summary([-1.0, 0.1, 4.0])), (
        "a difference may be below zero"
    )
    assert (
        text_of(mean_cell(summary([1.0, 3.0])), Column("wall", "seconds"))
        == "2 s [1 s to 3 s (range)]"
    )


def test_the_stall_of_an_arm_has_no_interval_below_zero(tmp_path: Path) -> None:
    for seed, wall in zip(SEEDS, (1.0, 1.0, 40.0), strict=True):
        timed(make_run(tmp_path / f"run-{seed}", Plan("blk", seed=seed)), wall)
    (arm,) = compared(tmp_path).arms
    found = arm.summary("wall_s")
    assert found is not None and found.low == 0.0


def test_seeds_are_in_the_order_of_numbers(tmp_path: Path) -> None:
    for seed in (10, 2, 1):
        make_run(tmp_path / f"run-{seed}", Plan("blk", seed=seed))
    (arm,) = compared(tmp_path).arms
    assert [run.seed for run in arm.runs] == ["1", "2", "10"]


@pytest.mark.parametrize(("scale", "named"), [("paper", False), ("smoke", True)])
def test_the_default_scale_is_not_named(tmp_path: Path, scale: str, named: bool) -> None:
    for seed in SEEDS:
        for variant, strategy in (("blk", "blocking"), ("ovl", "overlapped")):
            make_run(
                tmp_path / f"{variant}-{seed}",
                Plan(variant, seed=seed, strategy=strategy, scale=scale),
            )
    shown = compared(tmp_path)
    text = " ".join(
        [
            *summarize(shown).sentences,
            *said(shown, every_run=True),
            *(table.title for table in tables(shown)),
        ]
    )
    assert ("scale" in text) is named


def test_the_first_screen_has_effects_where_there_are_intervals(one: Comparison) -> None:
    found = opening(one)
    assert [row.title for row in found.rows][:2] == [
        "ovl against blk",
        "blk against ref",
    ] and not found.runs
    ahead = found.rows[0]
    assert (
        ahead.decided and ahead.low is not None and ahead.low <= ahead.at <= ahead.low + ahead.width
    )
    assert ahead.at > found.zero > found.rows[1].at, "+25% lies right of zero, -50% left"
    assert ahead.floor is not None and ahead.floor < found.zero < ahead.floor + ahead.floor_width
    said_first = summarize(one)
    assert len(said_first.first) == MOST_FIRST and {*said_first.first, *said_first.rest} == set(
        said_first.statements
    )


def test_the_first_screen_has_time_axes_where_there_are_none(tmp_path: Path) -> None:
    make_sweep(tmp_path, arms())
    found = opening(compared(tmp_path))
    assert not found.rows and [run.variant for run in found.runs] == ["clean", "ref", "blk", "ovl"]


def test_the_first_screen_begins_with_the_run_that_broke_a_promise(tmp_path: Path) -> None:
    plans = arms()
    plans[-1].verdict = "invalid"
    make_sweep(tmp_path, plans)
    assert opening(compared(tmp_path)).runs[0].variant == "ovl"


def test_a_page_of_many_runs_has_details_of_those_that_failed_and_one_of_each_arm(
    one: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = Figures((), {})
    assert render(one, (), summarize(one), drawn).count('<details class="run f"') == len(one.runs)
    monkeypatch.setattr("ecrl_cli.report.render.page.MOST_DETAILED", 4)
    assert MOST_DETAILED > 4
    page = render(one, (), summarize(one), drawn)
    assert (
        page.count('<details class="run f"') == 5 and "<code>ecrl report FOLDER/RUN</code>" in page
    )


def test_arms_have_their_columns_of_bases_only_where_there_is_one(one: Comparison) -> None:
    assert [
        column.label for column in arms_brief(one).columns if column.label.startswith("vs")
    ] == ["vs clean", "vs ref", "vs blk"]
