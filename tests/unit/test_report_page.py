"""The page: what it says is what was recorded, it asks nobody for anything, and no name can break
out of it.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from ecrl_cli.metrics.statistics import paired
from ecrl_cli.records.journal import read_json
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.report.build import report
from ecrl_cli.report.figures.export import picture, set_tooltip
from ecrl_cli.report.formats import change, duration, minus, rate
from ecrl_cli.report.tables.runs import runs_table
from ecrl_cli.report.tables.table import text_of
from tests.unit.report_runs import (
    Plan,
    Simulation,
    arms,
    compared,
    edit,
    judged,
    make_run,
    make_sweep,
    write_json,
)

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)> $\\frac{"


class Page(HTMLParser):
    """Tags with their attributes, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def page_of(folder: Path) -> Page:
    return Page(report([folder]).page.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """The report on the four arms of a cell."""
    return page_of(make_sweep(tmp_path_factory.mktemp("report") / "sweep", arms()))


def test_the_numbers_shown_are_the_recorded_ones(four: Page) -> None:
    page = four
    for plan in arms():
        said = Simulation(plan).metrics()
        assert rate(said["goodput"]) in page.text and duration(said["wall_s"]) in page.text
        if said["checkpoints"]["submitted"]:
            assert (
                duration(said["checkpoints"]["stall_s"] / said["checkpoints"]["submitted"])
                in page.text
            )
    assert "signal 9, rank 1" in page.text and "step 20" in page.text
    assert page.count("polyline") >= 2 * (1 + 1 + 3 + 3)


def test_the_page_asks_nobody_for_anything(four: Page) -> None:
    page = four
    linking = ("src", "href", "xlink:href", "data", "action")
    addresses = [
        value
        for _, attributes in page.tags
        for key, value in attributes.items()
        if key in linking and value
    ]
    assert not [a for a in addresses if re.match(r"\w+:", a) and not a.startswith("data:,")]
    policy = next(
        a["content"]
        for tag, a in page.tags
        if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy and policy.startswith("default-src 'none'")
    assert not [tag for tag, a in page.tags if any(key.startswith("on") for key in a)]


def test_hostile_names_are_text(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep", [Plan("ref", HOSTILE, kills=()), Plan(HOSTILE, HOSTILE)])
    run = next(sweep.glob("*ref*"))
    verdict = json.loads((run / "verdict.json").read_text(encoding="utf-8"))
    verdict["findings"][0]["message"] = HOSTILE
    verdict["findings"][1]["evidence"] = [HOSTILE]
    judged(RunLayout(run), verdict)
    page = page_of(sweep)
    assert page.count("script") == 1 and page.count("img") == 0
    assert page.text.count("<script>alert(1)</script>") >= 6
    assert "<script" not in (sweep / "report" / "report.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("undrawn")
def test_control_characters_do_not_reach_the_page(tmp_path: Path) -> None:
    text = report([make_run(tmp_path / "run", Plan("a\x1b[31m\x00b"))]).page.read_text(
        encoding="utf-8"
    )
    assert "\x1b" not in text and "\x00" not in text


@pytest.mark.usefixtures("undrawn")
def test_a_time_that_is_none_and_a_loss_beyond_all_bounds_cost_no_page(tmp_path: Path) -> None:
    """A supervisor's time in milliseconds, and two runs of an arm whose perplexity is finite and
    its square is not.
    """
    make_sweep(tmp_path, [replace(plan, seed=seed) for seed in (1, 2) for plan in arms()])
    for run in tmp_path.glob("*-s*"):
        document = read_json(run / "supervisor.json")
        document["sessions"][0]["time"] *= 1000
        write_json(run / "supervisor.json", document)
        metrics = read_json(run / "metrics.json")
        held_out = {
            "global_step": metrics["target_steps"],
            "samples": 1,
            "loss": 400.0,
            "perplexity": 1e170,
        }
        edit(run / "metrics.json", evaluations=[held_out])
    made = report([tmp_path])
    assert made.exit_code == 0 and "400" in made.page.with_name("runs.csv").read_text()


def test_a_variant_that_matplotlib_would_hide_is_in_the_legend(tmp_path: Path) -> None:
    assert "_odd" in page_of(make_run(tmp_path / "run", Plan("_odd"))).text


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("status", "headline"),
    [
        ("valid", "Every recovery was judged valid."),
        ("invalid", "1 of 1 run broke a promise."),
        ("unknown", "Not proven"),
        (None, "Not proven"),
    ],
)
def test_the_headline_is_the_verdict(tmp_path: Path, status: str | None, headline: str) -> None:
    assert headline in page_of(make_run(tmp_path / "run", Plan(verdict=status))).text


def test_the_page_opens_with_who_wins_and_says_so_in_numbers(tmp_path: Path) -> None:
    """The first table and the first figure are the answer; its numbers are those of
    `metrics.statistics`.
    """
    plans = [
        plan for suite in ("r18-base", "r50-late") for seed in (1, 2) for plan in arms(suite, seed)
    ]
    page = page_of(make_sweep(tmp_path / "sweep", plans))
    goodput = {
        v: [Simulation(plan).metrics()["goodput"] for plan in plans if plan.variant == v]
        for v in ("blk", "ovl")
    }
    pair = paired(goodput["ovl"], goodput["blk"])
    assert pair.ratio_of_means and pair.mean_of_ratios
    said = page.text[
        page.text.index("Who wins, and what it costs") : page.text.index(
            "Committed steps per second of wall time"
        )
    ]
    row = " ".join(said[said.index("ovl against blk") :].split())
    interval = f"{change(pair.ratio_low)} to {change(pair.ratio_high)}"
    assert row.startswith(
        f"ovl against blk4{change(pair.ratio_of_means)}{interval}{change(pair.mean_of_ratios.mean)}"
    )
    assert "4 of 4 up" in row and "above the floor" in row and "scale smoke" in said
    assert f"ovl against blk, all suites: {change(pair.mean_of_ratios.mean)}" in page.text, (
        "the figure says the same"
    )


@pytest.mark.usefixtures("undrawn")
def test_where_nothing_ran_twice_no_floor_is_claimed(tmp_path: Path) -> None:
    text = page_of(
        make_sweep(tmp_path / "sweep", [plan for seed in (1, 2, 3) for plan in arms(seed=seed)])
    ).text
    assert (
        "Nothing ran twice, so that there is no noise floor" in text
        and "above the floor" not in text
    )


def test_the_figures_say_the_recorded_values(tmp_path: Path) -> None:
    plans = [plan for seed in (1, 2) for plan in arms(seed=seed)]
    page = page_of(make_sweep(tmp_path / "sweep", plans))
    for plan in plans:
        said = Simulation(plan).metrics()
        name = f"{plan.suite} {plan.variant}"
        assert f"{name}, seed {plan.seed}: {rate(said['goodput'])} steps/s" in page.text
    steps = Simulation(plans[2]).metrics()["mean_loss"]
    read = re.search(r"loss at step (\d+): clean ([\d.]+),", page.text)
    assert read and float(read[2]) == pytest.approx(steps[read[1]], rel=1e-3)
    assert "kill of rank 1 at step 24" in page.text


def test_the_runs_that_failed_stand_first_whatever_their_suite(tmp_path: Path) -> None:
    plans = [plan for suite in ("one", "two") for plan in arms(suite)]
    plans[-1].verdict = "invalid"
    table = runs_table(compared(make_sweep(tmp_path / "sweep", plans)))
    assert [(row[0], text_of(row[1], table.columns[1])) for row in table.rows[:2]] == [
        ("two", "ovl"),
        ("one", "clean"),
    ]
    assert len(table.rows) == 8


@pytest.mark.usefixtures("undrawn")
def test_every_run_is_known_to_the_filter_wherever_it_stands(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep", [*arms("one", 1), *arms("two", 2)])
    page = page_of(sweep)
    known = [a for tag, a in page.tags if tag in ("tr", "details") and "data-verdict" in a]
    assert len(known) == 8 * 2  # a row and a section each
    assert {(a["data-suite"], a["data-seed"]) for a in known} == {("one", "1"), ("two", "2")}
    options = [a["value"] for tag, a in page.tags if tag == "option"]
    assert options == ["", "one", "two", "", "clean", "ref", "blk", "ovl", "", "1", "2"]


class Awake(Page):
    """What a browser that runs scripts builds at first: what stands in a noscript is text to it."""

    asleep = 0
    nodes = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.nodes += not self.asleep
        self.asleep += tag == "noscript"

    def handle_endtag(self, tag: str) -> None:
        self.asleep = max(0, self.asleep - (tag == "noscript"))


@pytest.mark.usefixtures("undrawn")
def test_another_run_adds_little(tmp_path: Path) -> None:
    """So that 72 runs of the length of the published ones stay far under 4 MB and 20,000 elements:
    what loads at once is small.
    """
    text = {}
    for seeds in (2, 4):
        plans = [
            Plan("blk", "suite", seed, steps=400, every=10, kills=(101, 305))
            for seed in range(seeds)
        ]
        text[seeds] = report([make_sweep(tmp_path / str(seeds), plans)]).page.read_text(
            encoding="utf-8"
        )
    assert (len(text[4]) - len(text[2])) / 2 < 50_000
    assert (Awake(text[4]).nodes - Awake(text[2]).nodes) / 2 < 60


def test_minus_signs_are_true_and_names_keep_their_hyphens() -> None:
    assert minus(
        "-2.9% to -3.0% in cifar10-r18-2, -x [-1, 2-3]"
    ) == "~2.9% to ~3.0% in cifar10-r18-2, -x [~1, 2-3]".replace("~", "\N{MINUS SIGN}")


def test_what_a_figure_says_cannot_break_out_of_it(tmp_path: Path) -> None:
    figure = Figure()
    set_tooltip(figure.subplots().axhspan(0, 1, color="#3d4650"), HOSTILE + " #3d4650 0.123456")
    svg = picture("x", "title", figure).svg
    assert HOSTILE in Page(svg).text
    assert "<script" not in svg and "#3d4650 0.123456" in svg and "var(--v-ref)" in svg


@pytest.mark.usefixtures("undrawn")
def test_a_long_list_of_checkpoints_is_cut_and_says_so(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "run", Plan("blk", steps=120, every=2, kills=())))
    assert "20 committed checkpoints in between not shown" in page.text


@pytest.mark.usefixtures("undrawn")
def test_every_gate_is_listed_with_its_result(tmp_path: Path) -> None:
    text = page_of(make_run(tmp_path / "run", Plan(verdict="invalid"))).text
    assert "passed Every submitted checkpoint accounted for" in text.replace("✓ ", "").replace(
        "\n", " "
    )
    assert "failed Every run judged valid: run is invalid" in text.replace("✕ ", "")
