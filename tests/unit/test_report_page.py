"""The page: what it says is what was recorded, it asks nobody for anything, and no name can break out of it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ecrl_cli.report.build import report
from ecrl_cli.report.formats import duration, rate
from tests.unit.report_runs import Plan, Simulation, arms, make_run, make_sweep

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
    return Page(report([folder]).page.read_text())


def test_the_numbers_shown_are_the_recorded_ones(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep", arms())
    page = page_of(sweep)
    for plan in arms():
        said = Simulation(plan).metrics()
        assert rate(said["goodput"]) in page.text and duration(said["wall_s"]) in page.text
        if said["checkpoints"]["submitted"]:
            assert duration(said["checkpoints"]["stall_s"] / said["checkpoints"]["submitted"]) in page.text
    assert "signal 9, rank 1" in page.text and "step 20" in page.text
    assert page.count("polyline") >= 2 * (1 + 1 + 3 + 3)


def test_the_page_asks_nobody_for_anything(tmp_path: Path) -> None:
    page = page_of(make_sweep(tmp_path / "sweep", arms()))
    linking = ("src", "href", "xlink:href", "data", "action")
    addresses = [value for _, attributes in page.tags for key, value in attributes.items() if key in linking and value]
    assert not [a for a in addresses if re.match(r"\w+:", a) and not a.startswith("data:,")]
    policy = next(a["content"] for tag, a in page.tags if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy")
    assert policy and policy.startswith("default-src 'none'")
    assert not [tag for tag, a in page.tags if any(key.startswith("on") for key in a)]


def test_hostile_names_are_text(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep", [Plan("ref", HOSTILE, kills=()), Plan(HOSTILE, HOSTILE)])
    run = next(sweep.glob("*ref*"))
    verdict = json.loads((run / "verdict.json").read_text())
    verdict["findings"][0]["message"] = HOSTILE
    verdict["findings"][1]["evidence"] = [HOSTILE]
    (run / "verdict.json").write_text(json.dumps(verdict))
    page = page_of(sweep)
    assert page.count("script") == 1 and page.count("img") == 0
    assert page.text.count("<script>alert(1)</script>") >= 6
    assert "<script" not in (sweep / "report" / "report.md").read_text()


def test_control_characters_do_not_reach_the_page(tmp_path: Path) -> None:
    text = report([make_run(tmp_path / "run", Plan("a\x1b[31m\x00b"))]).page.read_text()
    assert "\x1b" not in text and "\x00" not in text


def test_a_variant_that_matplotlib_would_hide_is_in_the_legend(tmp_path: Path) -> None:
    assert "_odd" in page_of(make_run(tmp_path / "run", Plan("_odd"))).text


@pytest.mark.parametrize(
    ("status", "headline"),
    [("valid", "Every recovery was judged valid."), ("invalid", "1 of 1 run broke a promise."), ("unknown", "Not proven"), (None, "Not proven")],
)
def test_the_headline_is_the_verdict(tmp_path: Path, status: str | None, headline: str) -> None:
    assert headline in page_of(make_run(tmp_path / "run", Plan(verdict=status))).text


def test_the_answer_says_what_it_cost_and_how_far_to_trust_it(tmp_path: Path) -> None:
    text = " ".join(page_of(make_sweep(tmp_path / "one", arms())).text.split())
    assert "4 restarts in all; 18 steps had to be done again." in text
    assert re.search(r"Goodput of ovl is \d+\.\d% below clean, \d+\.\d% below ref and \d+\.\d% above blk\.", text)
    assert "116 ms in ref, 116 ms in blk and 7 ms in ovl" in text
    assert "Each arm is one run" in text and "without an interval" in text
    many = page_of(make_sweep(tmp_path / "many", [plan for seed in (1, 2, 3) for plan in arms(seed=seed)])).text
    assert "Each arm has 3 runs" in many and "Each arm is one run" not in many


def test_a_long_list_of_checkpoints_is_cut_and_says_so(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "run", Plan("blk", steps=120, every=2, kills=())))
    assert "20 committed checkpoints in between not shown" in page.text


def test_every_gate_is_listed_with_its_result(tmp_path: Path) -> None:
    text = page_of(make_run(tmp_path / "run", Plan(verdict="invalid"))).text
    assert "passed Every submitted checkpoint accounted for" in text.replace("✓ ", "").replace("\n", " ")
    assert "failed Every run judged valid: run is invalid" in text.replace("✕ ", "")
