"""Builds over time: their order, what fails first, what changed from the build before, and what
damage costs.
"""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from ecrl_cli.cli.main import main
from ecrl_cli.records.journal import read_json
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.report.figures import history as figures
from ecrl_cli.report.history import history_report
from ecrl_cli.report.model.history import History, read_history
from ecrl_cli.report.tables.history import around, history_rows
from tests.unit.report_runs import (
    WALL_0,
    Plan,
    arms,
    edit,
    full_sweep,
    judged_again,
    make_sweep,
    write_json,
)
from tests.unit.test_report_page import HOSTILE, Page

DAY = 86400.0


def at(folder: Path, days: float, **environment: Any) -> Path:
    """Let the runs in `folder` have been started `days` after the first build, in an environment
    that differs so.
    """
    for supervisor in folder.glob("*/supervisor.json"):
        layout = RunLayout(supervisor.parent)
        document = read_json(supervisor)
        # no two at once
        document["sessions"][0]["time"] = (
            WALL_0 + days * DAY + document["sessions"][0]["time"] % 10**6 / 100
        )
        write_json(supervisor, document)
        if environment:
            edit(layout.environment, **environment)
        judged_again(layout)
    return folder


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three builds of two suites, named against their order: the second is slower and on other
    code, the third breaks a promise in one arm.
    """
    root = tmp_path_factory.mktemp("builds")
    names = ("ref", "ref2", "ovl")
    full_sweep(root / "c", names=names)
    full_sweep(root / "b", names=names, slower=1.25)
    full_sweep(root / "a", names=names, slower=1.25)
    edit(root / "a" / "two-ovl-s2027" / "verdict.json", status="invalid")
    at(root / "c", 0)
    at(root / "b", 1, git_revision="b2" * 20)
    at(root / "a", 2, git_revision="b2" * 20)
    return root


@pytest.fixture(scope="module")
def history(three: Path) -> History:
    return read_history([three])


def test_builds_stand_in_the_order_in_which_they_ran(three: Path, history: History) -> None:
    assert [build.name for build in history.builds] == ["c", "b", "a"]
    assert [build.name for build in read_history([three / "b", three / "c"]).builds] == ["c", "b"]
    assert [build.commits for build in history.builds] == [
        ("a1",),
        ("b2b2b2b2b2b2",),
        ("b2b2b2b2b2b2",),
    ]
    assert around(history, 1) == "git_revision a1 to b2b2b2b2b2b2" and around(history, 2) == ""


def test_every_panel_of_a_figure_says_what_its_axes_are(history: History) -> None:
    for measure, (_, unit) in figures.TITLES.items():
        drawn = figures._draw(history, measure, unit)
        assert [
            (axes.get_xlabel(), axes.get_ylabel()) for axes in drawn.axes if axes.get_visible()
        ] == [("build, the newest last", unit)] * 2
        assert [axes.get_title(loc="left") for axes in drawn.axes if axes.get_visible()] == [
            "one",
            "two",
        ]


def test_what_fails_stands_first_with_since_when(history: History) -> None:
    first = history.tracks[0]
    assert (first.key, first.now and first.now.status, first.before and first.before.status) == (
        ("two", "ovl"),
        "invalid",
        "valid",
    )
    assert history.builds[first.since].name == "a" and len(history.failing) == 1
    assert all(track.since == 0 for track in history.tracks[1:])


def test_a_change_is_held_against_the_build_before_pair_by_pair(history: History) -> None:
    rows = {(row["build"], row["suite"], row["arm"]): row for row in history_rows(history)}
    slower = rows["b", "one", "ovl"]
    assert (slower["goodput_change_mean"], slower["goodput_change_pairs"]) == (
        pytest.approx(-0.2),
        3,
    )
    assert slower["goodput_change_told_apart"] is True and slower["held_against"] == "c"
    assert (
        rows["a", "one", "ovl"]["goodput_change_told_apart"] is False
        and rows["a", "one", "ovl"]["goodput_change_mean"] == 0
    )
    assert rows["a", "two", "ovl"]["goodput_change_mean"] is None, "its suite failed a gate"
    assert rows["c", "one", "ovl"]["held_against"] is None


@pytest.mark.usefixtures("undrawn")
def test_it_is_written_in_each_form_and_says_what_matters_first(
    three: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                "report",
                "--history",
                str(three),
                "--out",
                str(tmp_path / "out"),
                "--junit",
                str(tmp_path / "junit.xml"),
            ]
        )
        == 1
    )
    said = capsys.readouterr().out
    assert said.startswith(
        "1 of 6 arms failing in a.\ntwo ovl: invalid; in b it was valid. same-trajectory: the"
        " comparison is invalid\n"
    )
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {
        "index.html",
        "history.md",
        "history.csv",
        "history.json",
        "builds.csv",
    }
    with (tmp_path / "out" / "history.csv").open(newline="") as file:
        assert [row["build"] for row in csv.DictReader(file)] == ["c"] * 6 + ["b"] * 6 + ["a"] * 6
    document = json.loads((tmp_path / "out" / "history.json").read_text())
    assert (document["exit_code"], document["failing"]) == (
        1,
        [{"suite": "two", "arm": "ovl", "since": "a"}],
    )
    page = Page((tmp_path / "out" / "index.html").read_text())
    assert (
        page.text.index("two ovl: invalid") < page.text.index("Now, and what changed")
        and page.count("table") == 4
    )
    assert (
        '<failure message="same-trajectory: the comparison is invalid'
        in (tmp_path / "junit.xml").read_text()
    )


@pytest.mark.usefixtures("undrawn")
def test_a_slower_build_is_said_in_words(
    three: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["report", "--history", str(three / "c"), str(three / "b"), "--out", str(tmp_path)])
        == 0
    )
    said = capsys.readouterr().out
    assert "Every arm of b is valid." in said
    assert (
        "one ovl is slower than in c: -20.0%. Mean of ratios, identical in all pairs, 3 pairs;"
        " above the noise floor of " in said
    )
    assert "Around b this changed: git_revision a1 to b2b2b2b2b2b2." in said
    assert (
        "each at 95%: about 0.9 would show by chance alone. How far two builds of the same code lie"
        " apart was not measured." in said
    )


@pytest.mark.usefixtures("undrawn")
def test_a_gate_of_the_newest_build_that_failed_is_said_and_told_to_ci(
    three: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("c", "b"):
        shutil.copytree(three / name, tmp_path / name)
    shutil.rmtree(tmp_path / "b" / "one-ovl-s4242")
    with (tmp_path / "b" / "manifest.csv").open("r+", newline="") as file:
        rows = [row for row in file if not row.startswith("one-ovl-s4242,")]
        file.seek(0)
        file.truncate()
        file.writelines(rows)
    assert (
        main(
            [
                "report",
                "--history",
                str(tmp_path),
                "--out",
                str(tmp_path / "out"),
                "--junit",
                str(tmp_path / "ci.xml"),
            ]
        )
        == 1
    )
    said = capsys.readouterr().out
    assert said.startswith(
        "Every arm of b is valid, but a quality gate failed.\nGate failed: one: arms: ovl lacks"
        " seed 4242.\n"
    )
    cases = ElementTree.parse(tmp_path / "ci.xml").iter("testcase")
    assert {
        (case.get("classname"), case.get("name"))
        for case in cases
        if case.find("failure") is not None
    } == {("one", "arms")}
    assert [
        gate["name"]
        for gate in json.loads((tmp_path / "out" / "history.json").read_text())["gates"]["one"]
        if not gate["passed"]
    ] == ["arms"]


def test_builds_of_one_name_in_folders_of_one_name_are_told_apart(
    three: Path, tmp_path: Path
) -> None:
    for side, name in (("m1", "c"), ("m2", "b")):
        shutil.copytree(three / name, tmp_path / side / "nightly" / "build")
    assert [
        build.name
        for build in read_history([tmp_path / side / "nightly" for side in ("m1", "m2")]).builds
    ] == [
        "m1/nightly/build",
        "m2/nightly/build",
    ]


def test_a_damaged_run_costs_its_own_row(three: Path, tmp_path: Path) -> None:
    shutil.copytree(three / "c", tmp_path / "c")
    shutil.copytree(three / "b", tmp_path / "b")
    (tmp_path / "b" / "one-ref-s1337" / "supervisor.json").write_text("{")
    (tmp_path / "b" / "manifest.csv").write_text('run,suite\n"' + "x" * 200_000)
    found = read_history([tmp_path])
    tracks = {track.key: track for track in found.tracks}
    broken = tracks["one", "ref"].now
    assert (
        broken
        and broken.status == "unfinished"
        and "supervisor.json" in broken.why
        and len(broken.runs) == 3
    )
    assert [track.key for track in found.failing] == [("one", "ref")] and len(tracks) == 6
    assert any("manifest.csv" in note for note in found.notes)


def test_an_arm_that_is_no_longer_run_and_a_new_one_are_named(three: Path, tmp_path: Path) -> None:
    shutil.copytree(three / "c", tmp_path / "old")
    at(make_sweep(tmp_path / "new", [*arms("one"), Plan("mem", "one")]), 3)
    found = read_history([tmp_path / "old", tmp_path / "new"])
    tracks = {track.key: track for track in found.tracks}
    assert tracks["two", "ovl"].now is None and tracks["two", "ovl"].last == 0
    assert tracks["one", "mem"].now and tracks["one", "mem"].before is None


def test_copies_of_a_build_count_once(three: Path, tmp_path: Path) -> None:
    shutil.copytree(three / "c", tmp_path / "again")
    found = read_history([three / "c", tmp_path / "again"])
    assert [build.name for build in found.builds] == ["c"] and found.notes == (
        "again holds copies of the runs of c: left out.",
    )


@pytest.mark.usefixtures("undrawn")
def test_a_strangers_strings_are_text(tmp_path: Path) -> None:
    at(
        make_sweep(
            tmp_path / "x" / "a<script>b", [Plan("ref", HOSTILE, kills=()), Plan(HOSTILE, HOSTILE)]
        ),
        0,
        git_revision=HOSTILE,
    )
    at(
        make_sweep(tmp_path / "x" / "second", [Plan("ref", HOSTILE, kills=(), verdict="invalid")]),
        1,
        cpu={"model": HOSTILE},
    )
    page = history_report([tmp_path / "x"]).page
    found = Page(page.read_text())
    assert (
        found.count("script") == 1
        and found.count("img") == 0
        and "<script>alert(1)</script>" in found.text
    )
    assert "<script" not in page.with_name("history.md").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "does not exist"),
        (["empty"], "holds neither runs nor sweeps"),
        (["one"], "one build is no history"),
        (["one", "two"], "2 folders and no place for their history"),
        (["one", "two", "--against", "one"], "leave one of them out"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("one", "two"):
        make_sweep(tmp_path / name, [Plan("ref", kills=())])
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert main(["report", "--history", *words]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and said in lines[0]
    assert sorted(tmp_path.rglob("*")) == before
