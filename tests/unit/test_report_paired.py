"""Which runs are paired, what is pooled, what the noise floor is and when an effect stands above
it; the gates that decide what is averaged.
"""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.patches import Rectangle

from ecrl_cli.metrics.statistics import paired, summary
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.report.figures.runs import draw_effects
from ecrl_cli.report.model.comparison import ALL, Comparison, compare
from ecrl_cli.report.model.contrast import (
    EQUAL_RUNS,
    NO_FLOOR,
    REPEATED_REFERENCE,
    Contrast,
    NoiseFloor,
    by_scope,
    compared_arms,
    floors,
    noise_floor,
    pairs,
    versus,
)
from ecrl_cli.report.tables.comparisons import brief, tables, wins_table
from ecrl_cli.report.tables.records import (
    comparison_rows,
    noise_rows,
    overlap_rows,
    restart_cost_rows,
    summary_rows,
)
from ecrl_cli.report.tables.table import text_of
from ecrl_cli.report.text.claims import claims
from tests.unit.report_runs import (
    SEEDS,
    Plan,
    arms,
    compared,
    edit,
    full_plans,
    full_sweep,
    later,
    make_run,
    make_sweep,
    timed,
)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """A suite of five arms and three seeds; nobody changes it."""
    return full_sweep(tmp_path_factory.mktemp("one"), suites=("one",))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return full_sweep(tmp_path_factory.mktemp("two"))


def test_pairs_are_of_one_suite_and_one_seed(two: Comparison) -> None:
    shown = two
    found = pairs(shown, "ovl", "blk")
    assert len(found) == 6 and all(
        (a.suite, a.seed, a.variant, b.variant) == (b.suite, b.seed, "ovl", "blk") for a, b in found
    )
    assert [a.suite for a, _ in pairs(shown, "ovl", "blk", ["two"])] == ["two"] * 3
    assert (
        pairs(shown, "ovl", "nobody")
        == pairs(shown, "nobody", "blk")
        == pairs(shown, "ovl", "blk", ["three"])
        == []
    )


def test_pooled_is_over_the_pairs_of_all_suites(two: Comparison) -> None:
    shown = two
    goodput = {
        (run.suite, run.variant, run.seed): run.metrics.goodput for run in shown.runs if run.metrics
    }
    order = [(run.suite, run.seed) for run, _ in pairs(shown, "ovl", "blk")]
    expected = paired(
        [goodput[s, "ovl", n] for s, n in order], [goodput[s, "blk", n] for s, n in order]
    )
    assert versus(shown, "ovl", "blk", "goodput") == expected and expected.n == 6
    assert expected.ratio_of_means == pytest.approx(0.25) and expected.signs.positive == 6
    assert compared_arms(shown) == [
        ("ovl", "blk"),
        ("blk", "ref"),
        ("ovl", "ref"),
        ("ref", "clean"),
        ("blk", "clean"),
        ("ovl", "clean"),
        ("ref2", "ref"),
    ]
    rows = {
        (row["suite"], row["arm"], row["base"], row["measure"]): row
        for row in comparison_rows(shown)
    }
    assert (
        rows[ALL, "ovl", "blk", "goodput"]["ratio_of_means"] == expected.ratio_of_means
        and rows["one", "ovl", "blk", "goodput"]["pairs"] == 3
    )
    assert (
        rows[ALL, "blk", "clean", "stall_s"]["ratio_of_means"] is None
        and rows[ALL, "blk", "clean", "stall_s"]["difference_mean"] > 0
    )
    pooled = {row["arm"]: row for row in summary_rows(shown) if row["suite"] == ALL}
    assert (
        pooled["ovl"]["n"] == 6
        and pooled["ovl"]["wall_s_mean"]
        == summary([r.metrics.wall_s for r in shown.runs if r.metrics and r.variant == "ovl"]).mean
    )


def test_an_arm_is_compared_with_the_base_of_its_own_settings(tmp_path: Path) -> None:
    """What was swept in one arm alone does not keep it from its base."""
    for every in (5, 10):
        for inflight in (1, 4):
            make_run(
                tmp_path / f"ovl-{every}-{inflight}",
                Plan("ovl", every=every, strategy="overlapped", inflight=inflight),
            )
        make_run(tmp_path / f"blk-{every}", Plan("blk", every=every))
    shown = compared(tmp_path)
    assert shown.passed, shown.gates
    found = {
        a.name: b.name for arm, base in compared_arms(shown) for a, b in pairs(shown, arm, base)
    }
    assert found == {
        f"ovl-{every}-{inflight}": f"blk-{every}" for every in (5, 10) for inflight in (1, 4)
    }


def test_the_floor_is_what_the_repeated_reference_differs_by(tmp_path: Path) -> None:
    shown = full_sweep(tmp_path, suites=("one",))
    floor = noise_floor(shown, "wall_s")
    assert floor is not None and (floor.source, floor.pairs) == (REPEATED_REFERENCE, 3)
    assert floor.largest == pytest.approx(1 / 0.99 - 1) and floor.relative.mean == pytest.approx(
        -0.005 / 3
    )
    assert (floor.alike, floor.differing) == (3, 0)
    final = json.loads((tmp_path / "one-ref2-s2027" / "metrics.json").read_text())["final"]
    edit(tmp_path / "one-ref2-s2027" / "metrics.json", final=final | {"buffers_digest": "other"})
    again = noise_floor(compared(tmp_path), "wall_s")
    assert again is not None and (again.alike, again.differing) == (2, 1)


def test_without_a_repeated_reference_equal_runs_of_different_suites_are_the_floor(
    tmp_path: Path,
) -> None:
    """Two suites that differ in their failures alone share their reference: the same run, made
    twice.
    """
    shown = full_sweep(tmp_path, names=("ref", "blk"))
    floor = noise_floor(shown, "wall_s")
    assert floor is not None and (floor.source, floor.pairs) == (EQUAL_RUNS, 6)
    assert floor.largest == pytest.approx(1.0), "the second suite took twice as long"
    both = floors(full_sweep(tmp_path / "with", names=("ref", "ref2")), "wall_s")
    assert [found.source for found in both] == [REPEATED_REFERENCE, EQUAL_RUNS]
    assert {row["source"] for row in noise_rows(compared(tmp_path / "with"))} == {
        REPEATED_REFERENCE,
        EQUAL_RUNS,
    }
    assert (
        noise_floor(full_sweep(tmp_path / "alone", suites=("one",), names=("ref", "blk")), "wall_s")
        is None
    )


def test_the_floor_does_not_depend_on_which_of_two_came_first(tmp_path: Path) -> None:
    found = []
    for name, suites in (("a", ("one", "two")), ("b", ("two", "one"))):
        full_sweep(tmp_path / name, suites=suites, names=("ref", "blk"))
        for number, suite in enumerate(("one", "two")):
            for seed in SEEDS:
                timed(tmp_path / name / f"{suite}-ref-s{seed}", 10.0 + 15 * number)
        found.append(noise_floor(compared(tmp_path / name), "wall_s"))
    assert [floor.largest for floor in found if floor] == pytest.approx([1.5, 1.5])


def test_repeats_of_a_matrix_are_paired_within_their_own_sweep(tmp_path: Path) -> None:
    """The second repeat ran twice as long: mixed pairs would show it."""
    folders = [tmp_path / name for name in ("a", "b")]
    for number, folder in enumerate(folders):
        full_sweep(folder, suites=("one",), slower=1.0 + number)
    shown = compared(*folders)
    found = pairs(shown, "ovl", "blk")
    assert len(found) == 6 and all(a.sweep == b.sweep for a, b in found)
    pair = versus(shown, "ovl", "blk", "wall_s")
    assert pair and pair.mean_of_ratios and pair.mean_of_ratios.sd == pytest.approx(0.0, abs=1e-12)


def test_no_run_of_repeats_within_a_sweep_counts_in_two_pairs(tmp_path: Path) -> None:
    """Two of ref and three of blk, all of one seed: two pairs, each with a reference of its own."""
    make_sweep(tmp_path, [plan for plan in arms("one") if plan.variant in ("ref", "blk")])
    for arm, more in (("ref", 1), ("blk", 2)):
        for number in range(more):
            again = tmp_path / f"one-{arm}-s1337-{number}"
            shutil.copytree(tmp_path / f"one-{arm}-s1337", again)
            later(again, 1e4 * (number + 1))
    found = pairs(compared(tmp_path), "blk", "ref")
    assert len(found) == 2 and len({id(run) for pair in found for run in pair}) == 4


@pytest.mark.parametrize(
    ("changes", "pooled"),
    [
        ({"cpu": {"model": "another"}}, False),
        ({"git_revision": "b2"}, False),
        ({"file_system": {"type": "tmpfs"}}, True),
    ],
)
def test_suites_are_pooled_only_on_one_machine_and_of_one_source(
    tmp_path: Path, changes: dict[str, Any], pooled: bool
) -> None:
    full_sweep(tmp_path)
    for run in tmp_path.glob("two-*"):
        edit(RunLayout(run).environment, **changes)
    shown = compared(tmp_path)
    assert shown.passed == ["one", "two"]
    assert (ALL in dict(shown.scopes)) is bool(shown.pooled_arms) is pooled
    assert (
        ALL
        in {
            row["suite"]
            for row in [*summary_rows(shown), *comparison_rows(shown), *noise_rows(shown)]
        }
    ) is pooled
    assert (
        len(brief(shown)) > 0
        and any(table.title.startswith(ALL) for table in brief(shown)) is pooled
    )
    assert {floor.source for floor in floors(shown, "wall_s")} == {REPEATED_REFERENCE}, (
        "the same run elsewhere is no equal run"
    )


def test_suites_of_two_scales_are_not_pooled(tmp_path: Path) -> None:
    full_sweep(tmp_path)
    for run in tmp_path.glob("two-*"):
        edit(RunLayout(run).metrics, scale="paper")
    shown = compared(tmp_path)
    assert shown.pooled_suites == () and shown.why_not_pooled == "two has another scale than one"


def test_an_arm_that_only_its_neighbours_have_is_missing(tmp_path: Path) -> None:
    make_sweep(
        tmp_path / "sweep",
        [*full_plans("one", ("ref", "blk", "ovl")), *full_plans("two", ("ref", "blk"))],
    )
    full_sweep(tmp_path / "other", suites=("three",))
    gates = {
        suite: {gate.name: gate for gate in found}["arms"]
        for suite, found in compared(tmp_path / "sweep", tmp_path / "other").gates.items()
    }
    assert gates["one"].passed and gates["three"].passed
    assert not gates["two"].passed and gates["two"].message == "no ovl"


@pytest.mark.parametrize(
    ("suite", "names", "message"),
    [("exp1", ("ref", "blk"), "no ovl"), ("cifar10-r18-base", ("ref", "ovl"), "no blk")],
)
def test_a_published_suite_has_the_published_arms(
    tmp_path: Path, suite: str, names: tuple[str, ...], message: str
) -> None:
    make_sweep(tmp_path, full_plans(suite, names))
    gate = {gate.name: gate for gate in compared(tmp_path).gates[suite]}["arms"]
    assert not gate.passed and gate.message == message


def test_the_noise_beside_a_comparison_is_of_the_suites_of_its_pairs(tmp_path: Path) -> None:
    """Of two sweeps only the first has ovl; the equal runs of the second lie far apart."""
    make_sweep(tmp_path / "a", full_plans("one"))
    make_sweep(tmp_path / "b", full_plans("two", ("ref", "ref2", "blk")))
    for seed in SEEDS:
        for folder, suite, again in (("a", "one", 10.1), ("b", "two", 20.0)):
            timed(tmp_path / folder / f"{suite}-ref-s{seed}", 10.0)
            timed(tmp_path / folder / f"{suite}-ref2-s{seed}", again)
    shown = compared(tmp_path / "a", tmp_path / "b")
    rows = {
        (row["suite"], row["arm"], row["base"], row["measure"]): row
        for row in comparison_rows(shown)
    }
    assert rows[ALL, "ovl", "blk", "wall_s"]["floor_largest"] == pytest.approx(0.01)
    assert rows[ALL, "blk", "ref", "wall_s"]["floor_largest"] == pytest.approx(1.0)
    (claim,) = claims(shown, "ovl", "blk")
    contrasts = {members[0].title: members for members in by_scope(shown)}["ovl against blk"]
    assert claim.floor == contrasts[0].floor and contrasts[0].suites == ("one",)
    table = wins_table(shown, [contrasts])
    assert table.title.startswith("Arm against arm, one, scale") and "1.0%" in text_of(
        table.rows[0][5], table.columns[5]
    )
    bands = {
        round(bar.get_width(), 6)
        for bar in draw_effects(by_scope(shown)).axes[0].patches
        if isinstance(bar, Rectangle)
    }
    own = {
        round(200 * each.noise, 6)
        for members in by_scope(shown)
        for each in members
        if each.noise is not None
    }
    assert bands == own and len(own) > 2, "behind each row its own floor, in percent to both sides"


@pytest.mark.parametrize(
    ("ratios", "largest", "above", "claimed", "words"),
    [
        ((0.050, 0.051, 0.052), 0.04, True, True, "above the floor"),
        ((0.050, 0.051, 0.052), 0.05, False, False, "within the floor"),
        ((-0.050, -0.051, -0.052), 0.04, True, True, "above the floor"),
        ((0.30, 0.01, -0.20), 0.001, False, False, "within the floor"),
        ((0.050, 0.051, 0.052), None, None, True, NO_FLOOR),
        ((0.30, 0.01, -0.20), None, None, False, NO_FLOOR),
        ((0.9,), 0.01, False, False, "one pair, no interval"),
    ],
)
def test_an_effect_is_above_the_floor_only_with_its_whole_interval(
    ratios: tuple[float, ...], largest: float | None, above: bool | None, claimed: bool, words: str
) -> None:
    # of one pair: the difference itself
    floor = (
        None
        if largest is None
        else NoiseFloor(REPEATED_REFERENCE, 1, summary([largest]), largest, 1, 0)
    )
    pair = paired([1 + ratio for ratio in ratios], [1.0] * len(ratios))
    found = Contrast("ovl", "blk", "goodput", pair, floor)
    assert (found.above_floor, found.distinguishable, found.against_floor) == (
        above,
        claimed,
        words,
    )


def test_the_floor_of_a_mean_does_not_grow_with_the_pairs_that_are_looked_at() -> None:
    """t(n - 1) * sd * sqrt(1/pairs + 1/n) beside the mean; worked out by hand for 1%, 3%: mean 2%,
    sd 1.4142%, t(1) 12.7062.
    """
    seen = NoiseFloor(REPEATED_REFERENCE, 2, summary([0.01, 0.03]), 0.03, 2, 0)
    assert seen.of_mean(2) == pytest.approx(0.02 + 12.7062047 * 0.014142136)
    noise = [0.02 * (-1) ** number for number in range(48)]
    few, many = (
        NoiseFloor(REPEATED_REFERENCE, n, summary([*noise[: n - 1], 0.2]), 0.2, n, 0)
        for n in (12, 48)
    )
    assert many.of_mean(24) < few.of_mean(24) < 0.1 < few.largest == many.largest
    assert many.of_mean(3) > many.of_mean(24), "a mean of few pairs may lie further off"


def test_a_suite_that_failed_a_gate_is_in_no_average(tmp_path: Path) -> None:
    full_sweep(tmp_path)
    edit(tmp_path / "two-blk-s2027" / "verdict.json", status="invalid")
    shown = compared(tmp_path)
    assert shown.passed == ["one"] and {a.suite for a, _ in pairs(shown, "ovl", "blk")} == {"one"}
    assert {
        row["suite"]
        for rows in (comparison_rows(shown), overlap_rows(shown), restart_cost_rows(shown))
        for row in rows
    } == {"one"}
    assert shown.pooled_arms == () and versus(shown, "ovl", "blk", "goodput", ["two"]) is None
    assert all("two" not in table.title.split(":")[0] for table in tables(shown))


def test_a_missing_seed_or_a_pending_run_fails_the_suite(tmp_path: Path) -> None:
    plan = [p for p in full_plans("one") if (p.variant, p.seed) != ("ovl", 2027)]
    make_sweep(tmp_path / "seed", plan)
    gate = {gate.name: gate for gate in compared(tmp_path / "seed").gates["one"]}["arms"]
    assert not gate.passed and gate.message == "ovl lacks seed 2027"
    make_sweep(tmp_path / "pending", full_plans("one"))
    with (tmp_path / "pending" / "manifest.csv").open("a", newline="") as file:
        csv.writer(file).writerow(["one-ovl-s5", "", "one", "ovl", "5", "failed", "gave up"])
    gate = {gate.name: gate for gate in compared(tmp_path / "pending").gates["one"]}["arms"]
    assert (
        not gate.passed and gate.message == "one-ovl-s5: never started (manifest: failed: gave up)"
    )


@pytest.mark.parametrize(
    ("changes", "passes"),
    [
        ({"git_revision": "another"}, False),
        ({"git_revision": "another", "source_sha256": "same"}, True),
        ({"source_sha256": "other"}, False),
        ({"python": "3.99", "source_sha256": "same"}, False),
        ({"math_kernels": {"MKL_CBWR": "AVX2"}, "source_sha256": "same"}, False),
    ],
)
def test_a_revision_counts_only_where_the_source_has_no_digest(
    tmp_path: Path, changes: dict[str, object], passes: bool
) -> None:
    full_sweep(tmp_path, suites=("one",))
    if "source_sha256" in changes:
        for run in tmp_path.glob("one-*"):
            edit(RunLayout(run).environment, source_sha256="same")
    edit(RunLayout(tmp_path / "one-ovl-s2027").environment, **changes)
    gates = {gate.name: gate.passed for gate in compared(tmp_path).gates["one"]}
    assert gates["environment"] is passes


def test_every_table_states_its_scale(two: Comparison) -> None:
    shown = two
    found = tables(shown)
    assert {table.title.partition(" (")[0] for table in found} >= {
        "one: arms",
        f"{ALL}: arms compared, pair by pair",
    }
    assert all("scale smoke" in table.title for table in [*found, *brief(shown)])
    assert all(
        len(row) == len(table.columns) for table in [*found, *brief(shown)] for row in table.rows
    )
    assert all(
        row["scale"] == "smoke"
        for rows in (summary_rows(shown), comparison_rows(shown), noise_rows(shown))
        for row in rows
    )


def test_the_floor_stands_beside_every_difference(two: Comparison) -> None:
    found = [table for table in tables(two) if "compared" in table.title]
    assert found[0].title.startswith(ALL), "all suites together come first"
    rows = [
        [text_of(value, column) for column, value in zip(table.columns, row, strict=True)]
        for table in found
        for row in table.rows
    ]
    cells = {row[-1] for row in rows if row[1:3] == ["ovl against blk", "wall"]}
    assert cells == {
        "above the floor (1.2%)",
        "above the floor (2.8%)",
    }, "a mean of six pairs, of three"


def test_one_pair_needs_no_table_in_a_terminal(tmp_path: Path) -> None:
    make_sweep(tmp_path, arms())
    assert brief(compared(tmp_path)) == []


def test_the_overlap_is_stall_saved_and_wall_saved(one: Comparison) -> None:
    shown = one
    (row,) = overlap_rows(shown)
    runs = {(run.variant, run.seed): run.metrics for run in shown.runs if run.metrics}
    stall = [
        runs["blk", str(n)].checkpoints["stall_s"] - runs["ovl", str(n)].checkpoints["stall_s"]
        for n in SEEDS
    ]
    wall = [runs["blk", str(n)].wall_s - runs["ovl", str(n)].wall_s for n in SEEDS]
    assert row["stall_saved_s_mean"] == pytest.approx(sum(stall) / 3) and row[
        "wall_saved_s_mean"
    ] == pytest.approx(sum(wall) / 3)
    assert row["efficiency"] == pytest.approx(sum(wall) / sum(stall))
    submitted = sum(runs["ovl", str(n)].checkpoints["submitted"] for n in SEEDS)
    assert row["overlapped_submitted"] == submitted
    assert row["overlapped_write_s"] == pytest.approx(
        sum(runs["ovl", str(n)].checkpoints["write_s"] for n in SEEDS) / submitted
    )


def test_a_restart_costs_the_mean_over_restarts(one: Comparison) -> None:
    shown = one
    found = {row["arm"]: row for row in restart_cost_rows(shown)}
    assert set(found) == {"blk", "ovl"} and found["blk"]["restarts"] == 6
    costs = [restart for run in shown.runs if run.variant == "blk" for restart in run.restarts]
    expected = summary([restart.total_s for restart in costs])
    assert (found["blk"]["total_s_mean"], found["blk"]["total_s_ci95_low"]) == (
        expected.mean,
        expected.low,
    )
    assert found["blk"]["import_s_mean"] == pytest.approx(0.4) and found["blk"]["replay_s_mean"] > 0


def test_ranks_that_share_a_gpu_are_told_of_wherever_the_scale_is(one: Comparison) -> None:
    shared = {"backend": "gloo", "device": "cuda"}
    runs = [
        replace(
            run,
            config=run.config | shared,
            environment=run.environment | {"gpus": [{"name": "one"}]},
        )
        for run in one.runs
    ]
    assert one.scale() == "smoke" and compare(runs).scale() == "smoke (ranks share a GPU over gloo)"
    assert (
        compare([replace(run, environment=run.environment | {"gpus": []}) for run in runs]).scale()
        == "smoke"
    )
