"""Two sweeps side by side: who stands against whom, with which statistics, what differs around
them, and what is refused.
"""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ecrl_cli.cli.main import main
from ecrl_cli.cli.report import report
from ecrl_cli.errors import ConfigError, RunDirectoryError
from ecrl_cli.metrics.statistics import paired
from ecrl_cli.records.journal import read_json
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.report.model.comparison import ALL, Comparison
from ecrl_cli.report.model.sweep_diff import SweepDiff, read_sweep_diff, sweep_diff
from ecrl_cli.report.render.sweep_diff import (
    against_document,
    against_markdown,
    against_rows,
    against_sentences,
    against_tables,
    effect_rows,
)
from tests.unit.report_runs import (
    SEEDS,
    WALLS,
    Plan,
    arms,
    compared,
    edit,
    full_sweep,
    later,
    make_sweep,
    timed,
)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Two suites, five arms, three seeds; nobody changes it."""
    return full_sweep(tmp_path_factory.mktemp("here"))


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """The same sweep on a machine that takes a quarter longer, has another processor, and is
    noisier.
    """
    folder = tmp_path_factory.mktemp("there")
    full_sweep(folder, slower=1.25)
    for run in folder.glob("*-s*"):
        edit(
            RunLayout(run).environment,
            cpu={"model": "another processor", "logical": 2},
            source_sha256="b2",
        )
    timed(folder / "one-ref2-s1337", 1.05 * WALLS["ref"] * 1.25)
    return compared(folder)


@pytest.fixture(scope="module")
def both(here: Comparison, slower: Comparison) -> SweepDiff:
    return sweep_diff(here, slower, "here", "there")


def test_every_run_stands_against_its_own_kind(both: SweepDiff) -> None:
    assert len(both.matched) == 30 and both.unmatched == ((), ()) and both.settings == {}
    assert all(
        (m.ours.suite, m.ours.variant, m.ours.seed)
        == (m.theirs.suite, m.theirs.variant, m.theirs.seed)
        for m in both.matched
    )


def test_the_difference_is_ours_relative_to_theirs(
    both: SweepDiff, here: Comparison, slower: Comparison
) -> None:
    found = both.contrast("ovl", "goodput", "one", ["one"])
    sides = [
        [
            r.metrics.goodput
            for r in side.runs
            if (r.suite, r.variant) == ("one", "ovl") and r.metrics
        ]
        for side in (here, slower)
    ]
    assert (
        found and found.pair == paired(*sides) and found.pair.ratio_of_means == pytest.approx(0.25)
    )
    rows = {(row["suite"], row["arm"], row["measure"]): row for row in against_rows(both)}
    assert rows[ALL, "ovl", "goodput"]["pairs"] == 6 and rows[ALL, "ovl", "wall_s"][
        "ratio_of_means"
    ] == pytest.approx(-0.2)
    assert (
        rows[ALL, "ovl", "goodput"]["told_apart"] is True
        and rows[ALL, "ovl", "goodput"]["scale"] == "smoke"
    )


def test_what_both_sides_say_of_the_arms_stands_together(both: SweepDiff) -> None:
    (row,) = [
        row
        for row in effect_rows(both)
        if (row["suite"], row["arm"], row["base"], row["measure"]) == (ALL, "ovl", "blk", "goodput")
    ]
    assert (
        row["ours_ratio_of_means"]
        == pytest.approx(0.25)
        == pytest.approx(row["theirs_ratio_of_means"])
    )
    assert row["ours_pairs"] == row["theirs_pairs"] == 6


def test_the_floor_is_the_larger_of_the_two_and_none_where_one_side_has_none(
    both: SweepDiff, here: Comparison, tmp_path: Path
) -> None:
    found = both.contrast("ovl", "goodput")
    assert found and found.floor and found.floor.largest == pytest.approx(0.05)
    unknown = sweep_diff(here, full_sweep(tmp_path, suites=("one",), names=("ref", "blk", "ovl")))
    alone = unknown.contrast("ovl", "goodput")
    assert (
        alone
        and alone.floor is None
        and "no noise floor: one side has no A/A arm" in " ".join(against_sentences(unknown))
    )


def test_the_floor_is_of_the_side_whose_means_of_equal_runs_differ_more(tmp_path: Path) -> None:
    """Here one of six pairs is 3% apart and the others are alike; there three pairs lie 2.8% up and
    down, so that a mean may be as far off.
    """
    full_sweep(tmp_path / "here")
    full_sweep(tmp_path / "there", suites=("one",))
    for run in (tmp_path / "here").glob("*-ref2-*"):
        arm = read_json(run.with_name(run.name.replace("ref2", "ref")) / "metrics.json")
        timed(run, arm["wall_s"] * (1 / 1.03 if run.name == "one-ref2-s1337" else 1.0))
    for factor, seed in zip((1.028, 1 / 1.028, 1.0), SEEDS, strict=True):
        timed(
            tmp_path / "there" / f"one-ref2-s{seed}",
            read_json(tmp_path / "there" / f"one-ref-s{seed}" / "metrics.json")["wall_s"] / factor,
        )
    found = sweep_diff(compared(tmp_path / "here"), compared(tmp_path / "there")).contrast(
        "ovl", "goodput"
    )
    assert found and found.floor and found.floor.largest == pytest.approx(0.028)


def test_repeats_stand_against_one_counterpart_each(tmp_path: Path) -> None:
    for side in ("mine", "other"):
        make_sweep(tmp_path / side, [plan for plan in arms() if plan.variant == "ref"])
        again = tmp_path / side / "again"
        shutil.copytree(tmp_path / side / "digits-cnn-kill-ref-s1337", again)
        later(again, 1e4)
    found = sweep_diff(compared(tmp_path / "mine"), compared(tmp_path / "other"))
    assert len({id(match.theirs) for match in found.matched}) == len(
        found.matched
    ) == 2 and found.unmatched == ((), ())


@pytest.mark.usefixtures("undrawn")
def test_what_is_wrong_on_the_other_side_alone_is_said_and_told_to_ci(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_sweep(tmp_path / "mine", arms())
    make_sweep(tmp_path / "other", [*arms(), *arms("only-there")])
    edit(tmp_path / "other" / "only-there-blk-s1337" / "verdict.json", status="invalid")
    where = ["--out", str(tmp_path / "out"), "--junit", str(tmp_path / "ci.xml")]
    assert (
        main(["report", str(tmp_path / "mine"), "--against", str(tmp_path / "other"), *where]) == 1
    )
    assert (
        "Gates of other that failed: only-there: verified: only-there-blk-s1337 is invalid."
        in capsys.readouterr().out
    )
    cases = ElementTree.parse(tmp_path / "ci.xml").iter("testcase")
    failed = {
        (case.get("classname"), case.get("name"))
        for case in cases
        if case.find("failure") is not None
    }
    assert failed == {("other: only-there", "verified"), ("other: only-there-blk-s1337", "verdict")}


def test_what_differs_around_them_is_named(both: SweepDiff) -> None:
    found = {
        difference.key: (difference.ours, difference.theirs) for difference in both.differences
    }
    assert found == {
        "cpu.model": (("a processor",), ("another processor",)),
        "source_sha256": ((), ("b2",)),
    }
    text = " ".join(against_sentences(both))
    assert "The environments differ in cpu.model and source_sha256." in text
    assert "Goodput of ovl is faster here: +25.0%" in text and text.count("scale smoke") >= 5
    assert "another processor" in against_markdown(both) and all(
        "scale" in table.title for table in against_tables(both)[1:]
    )


def test_the_same_sweep_twice_is_not_distinguishable(here: Comparison) -> None:
    same = sweep_diff(here, here, "one", "other")
    assert same.differences == [] and "one environment" in " ".join(against_sentences(same))
    assert all(
        "not statistically distinguishable" in sentence
        for sentence in against_sentences(same)
        if sentence.startswith("Goodput")
    )


def test_another_configuration_of_the_same_name_is_paired_and_its_keys_are_named(
    tmp_path: Path,
) -> None:
    make_sweep(tmp_path / "a", [Plan("ref", kills=(), seed=seed) for seed in SEEDS])
    make_sweep(tmp_path / "b", [Plan("ref", kills=(), seed=seed, every=5) for seed in SEEDS[:2]])
    found = sweep_diff(compared(tmp_path / "a"), compared(tmp_path / "b"), "a", "b")
    assert [match.differing for match in found.matched] == [
        ("checkpoint.every",)
    ] * 2 and found.settings == {"checkpoint.every": 2}
    assert [run.seed for run in found.unmatched[0]] == ["4242"] and found.unmatched[1] == ()
    text = " ".join(against_sentences(found))
    assert (
        "Counterparts differ in checkpoint.every (2 pairs)." in text
        and "Without a counterpart: 1 run of a." in text
    )


def test_a_suite_that_failed_on_one_side_is_not_averaged(tmp_path: Path, here: Comparison) -> None:
    full_sweep(tmp_path)
    edit(tmp_path / "two-blk-s2027" / "verdict.json", status="invalid")
    found = sweep_diff(here, compared(tmp_path))
    assert (found.passed, found.failed) == (["one"], ["two"]) and {
        row["suite"] for row in against_rows(found)
    } == {"one"}
    assert against_document(found)["not_averaged"] == ["two"] and "Not averaged" in " ".join(
        against_sentences(found)
    )


def test_what_has_nothing_in_common_is_refused(tmp_path: Path, here: Comparison) -> None:
    make_sweep(tmp_path / "other", arms("another-suite"))
    with pytest.raises(ConfigError, match="no finished run of other has a counterpart in mine"):
        read_sweep_diff(here, [tmp_path / "mine"], tmp_path / "other")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunDirectoryError, match="neither a run directory"):
        read_sweep_diff(here, [tmp_path / "mine"], tmp_path / "empty")


def test_a_refusal_is_one_line_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_sweep(tmp_path / "mine", arms())
    make_sweep(tmp_path / "other", arms("another-suite"))
    for other in (tmp_path / "other", tmp_path / "nowhere"):
        assert main(["report", str(tmp_path / "mine"), "--against", str(other)]) == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not (tmp_path / "mine" / "report").exists()


@pytest.mark.usefixtures("undrawn")
def test_the_report_has_its_files_and_its_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_sweep(tmp_path / "a" / "exp", arms())
    make_sweep(tmp_path / "b" / "exp", arms())
    assert (
        report(
            [
                str(tmp_path / "a" / "exp"),
                "--against",
                str(tmp_path / "b" / "exp"),
                "--out",
                str(tmp_path / "out"),
            ]
        )
        == 0
    )
    assert (
        "a/exp against b/exp: 4 pairs of runs of 1 suite, scale smoke." in capsys.readouterr().out
    )
    assert "# a/exp against b/exp" in (tmp_path / "out" / "against.md").read_text()
    with (tmp_path / "out" / "against.csv").open(newline="") as file:
        assert {row["arm"] for row in csv.DictReader(file)} == {"clean", "ref", "blk", "ovl"}
    assert (
        json.loads((tmp_path / "out" / "report.json").read_text())["against"]["theirs"] == "b/exp"
    )
