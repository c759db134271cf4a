"""The published tables: what they say of the published numbers is so, and what they call measured
is what was recorded.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import fields, replace
from pathlib import Path

import pytest

from ecrl_cli.records.events import RankLine
from ecrl_cli.replication.report import values
from ecrl_cli.replication.report.publication import published_tables
from ecrl_cli.replication.report.sample import experiments
from ecrl_cli.replication.report.setting import differences, facts, in_full, in_short
from ecrl_cli.replication.report.settings_tables import LOGGED
from ecrl_cli.report.tables.table import Table, text_of
from ecrl_cli.storage.files import write_json
from tests.unit.published_runs import SEEDS, SUITES, cell, diverge, matrix, read, recorded, run_of
from tests.unit.report_runs import Plan, edit, make_run, make_sweep

NUMBER = r"[-+]?[0-9][0-9.,]*"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = matrix(tmp_path_factory.mktemp("matrix") / "sweep")
    for suite in SUITES:
        for seed in SEEDS:
            diverge(run_of(folder, suite, "blk", seed), 0.0, equal=True)
            diverge(
                run_of(folder, suite, "ovl", seed),
                0.02 if suite.startswith("cifar100") else 0.0,
                equal=False,
            )
    return folder


@pytest.fixture(scope="module")
def tables(sweep: Path) -> dict[str, Table]:
    return by_ident(sweep)


def by_ident(*folders: Path) -> dict[str, Table]:
    return {table.ident: table.table for table in published_tables(experiments(read(*folders)))}


def texts(table: Table) -> list[tuple[str, ...]]:
    """The rows as a reader sees them."""
    return [
        tuple(text_of(value, column) for column, value in zip(table.columns, row, strict=True))
        for row in table.rows
    ]


def row(table: Table, *starts: str) -> dict[str, str]:
    """The only row that begins with these cells."""
    (found,) = [row for row in texts(table) if row[: len(starts)] == starts]
    return dict(zip([column.label for column in table.columns], found, strict=True))


def first(cell: str) -> float:
    """The number that a cell begins with."""
    match = re.match(NUMBER, cell)
    assert match, cell
    return float(match[0].replace(",", ""))


def mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)


@pytest.mark.parametrize("suite", values.SUITES, ids=lambda suite: suite.suite)
def test_the_published_rows_agree_with_themselves(suite: values.SuiteValues) -> None:
    """A digit copied wrongly into one of the thirteen columns shows here: gains are means over
    seeds, so only nearly the ratio of means.
    """
    assert suite.ovl_gain == pytest.approx(100 * (suite.ovl / suite.blk - 1), abs=0.005)
    assert suite.blk_drop == pytest.approx(100 * (suite.blk / suite.ref - 1), abs=0.005)
    assert suite.ovl_drop == pytest.approx(100 * (suite.ovl / suite.ref - 1), abs=0.005)
    assert suite.stall_change == pytest.approx(suite.ovl_stall - suite.blk_stall, abs=1.01e-4)


def test_the_published_aggregates_are_those_of_the_suites() -> None:
    for index, arm in enumerate(("ref", "blk", "ovl")):
        assert values.PUBLISHED.table5["goodput"].arms[index] == pytest.approx(
            mean([getattr(s, arm) for s in values.SUITES]), abs=1e-4
        )
    assert values.PUBLISHED.table5["stall_s"].blk == pytest.approx(
        mean([s.blk_stall for s in values.SUITES]), abs=1e-4
    )
    assert values.PUBLISHED.table5["wall_s"].difference == pytest.approx(
        mean([s.wall_change for s in values.SUITES]), abs=1e-4
    )
    for part in values.PUBLISHED.table7:
        members = [s for s in values.SUITES if getattr(s, part.axis) == part.group]
        gain = 100 * (mean([s.ovl for s in members]) / mean([s.blk for s in members]) - 1)
        assert part.gain == pytest.approx(gain, abs=5e-3)
        assert part.stall_change == pytest.approx(mean([s.stall_change for s in members]), abs=1e-4)


def test_every_table_of_the_matrix_is_there_and_says_its_scale(tables: dict[str, Table]) -> None:
    assert list(tables) == [f"table{number}" for number in range(1, 9)]
    for table in tables.values():
        assert "scale paper" in table.title
        assert table.rows and all(len(row) == len(table.columns) for row in table.rows)
        assert any(column.label == "What differs" for column in table.columns)


def test_every_table_says_what_was_set_otherwise(sweep: Path) -> None:
    assert all(
        "steps 20 instead of 1,600" in table.setting
        for table in published_tables(experiments(read(sweep)))
    )


def test_table5_has_the_recorded_means_beside_the_published_ones(
    sweep: Path, tables: dict[str, Table]
) -> None:
    table = tables["table5"]
    for metric, key in (("Stall time (s)", "stall_s"), ("Restarts", "restarts")):
        measured, published = row(table, metric, "measured"), row(table, metric, "published")
        for column, arm in (("Reference", "ref"), ("Blocking", "blk"), ("Overlapped", "ovl")):
            expected = mean([mean(recorded(sweep, suite, arm, key)) for suite in SUITES])
            assert first(measured[column]) == pytest.approx(expected, rel=1e-3)
        assert (
            published["Blocking"] == f"{values.PUBLISHED.table5[key].blk:.4f}"
            and measured["n"] == "9 pairs"
        )
    assert row(table, "Pass rate", "measured")["Blocking"] == "1.0000"


def test_a_write_reaches_from_serialising_to_durable_as_the_published_one(
    sweep: Path, tables: dict[str, Table]
) -> None:
    """Not the files alone: that is a part of it."""
    name = "Write time (s), serialise to durable"
    measured, published = (
        row(tables["table5"], name, "measured"),
        row(tables["table5"], name, "published"),
    )
    parts = [
        mean([mean(recorded(sweep, suite, "blk", key)) for suite in SUITES])
        for key in ("serialize_s", "write_s")
    ]
    assert first(measured["Blocking"]) == pytest.approx(sum(parts), rel=1e-3) and parts[0] > 0
    assert published["Blocking"] == f"{values.PUBLISHED.table5['write_s'].blk:.4f}"


def test_ratio_of_means_and_mean_of_ratios_stand_apart_on_both_clocks(
    sweep: Path, tables: dict[str, Table]
) -> None:
    for key, clock in (
        ("goodput", "launch to target"),
        ("goodput_published_clock", "published clock"),
    ):
        ovl, blk = (
            [number for suite in SUITES for number in recorded(sweep, suite, arm, key)]
            for arm in ("ovl", "blk")
        )
        of_means = row(
            tables["table5"], f"Goodput (steps/s), {clock}; gain as ratio of means", "measured"
        )["Ovl - Blk"]
        of_ratios = row(tables["table5"], f"Gain as mean of ratios, {clock}", "measured")[
            "Ovl - Blk"
        ]
        assert first(of_means) == pytest.approx(100 * (sum(ovl) / sum(blk) - 1), abs=0.006)
        assert first(of_ratios) == pytest.approx(
            100 * mean([a / b - 1 for a, b in zip(ovl, blk, strict=True)]), abs=0.006
        )
        assert of_means != of_ratios
    published = row(tables["table5"], "Gain as mean of ratios, published clock", "published")[
        "Ovl - Blk"
    ]
    assert published == "+3.3827%" and "+3.2272% is a ratio of means" in tables["table5"].note


def test_suites_are_ranked_by_what_was_measured(sweep: Path, tables: dict[str, Table]) -> None:
    goodputs = {
        suite: [sum(recorded(sweep, suite, arm, "goodput")) for arm in ("ovl", "blk")]
        for suite in SUITES
    }
    expected = sorted(SUITES, key=lambda suite: -goodputs[suite][0] / goodputs[suite][1])
    names = {
        "cifar10-r18-base": "CIFAR-10 ResNet-18 base",
        "cifar10-r18-late": "CIFAR-10 ResNet-18 late",
        "cifar100-r50-base": "CIFAR-100 ResNet-50 base",
    }
    measured = [
        cells for cells in texts(tables["table6"]) if cells[2] == "measured, launch to target"
    ]
    assert [(cells[0], cells[1]) for cells in measured] == [
        (str(rank), names[suite]) for rank, suite in enumerate(expected, 1)
    ]
    assert (
        row(tables["table6"], "3", "CIFAR-10 ResNet-18 base", "published")["Blk vs Ref"]
        == "-15.6849%"
    )
    wall = row(tables["table8"], "CIFAR-10 ResNet-18 base", "measured, launch to target")[
        "Ovl - Blk wall (s)"
    ]
    ovl, blk = (recorded(sweep, "cifar10-r18-base", arm, "wall_s") for arm in ("ovl", "blk"))
    assert first(wall) == pytest.approx(mean(ovl) - mean(blk), rel=2e-3)


def test_a_wall_time_is_on_the_clock_that_its_row_names(
    sweep: Path, tables: dict[str, Table]
) -> None:
    """The published walls are 1,600 steps over the published goodput; the synthetic runs take a
    second less on that clock.
    """
    for blk, wall in zip(
        values.PUBLISHED.table5["goodput"].arms, values.PUBLISHED.table5["wall_s"].arms, strict=True
    ):
        assert wall == pytest.approx(1600 / blk, rel=0.1)
    theirs, ours = (
        row(tables["table5"], f"Wall time (s), {clock}", "measured")
        for clock in ("published clock", "launch to target")
    )
    for column, arm in (("Reference", "ref"), ("Blocking", "blk"), ("Overlapped", "ovl")):
        expected = mean([mean(recorded(sweep, suite, arm, "wall_s")) for suite in SUITES])
        assert first(ours[column]) == pytest.approx(expected, rel=1e-3) and first(
            theirs[column]
        ) == pytest.approx(expected - 1, rel=1e-3)
    assert (
        row(tables["table5"], "Wall time (s), published clock", "published")["Blocking"]
        == f"{values.PUBLISHED.table5['wall_s'].blk:.4f}"
    )
    assert row(tables["table5"], "Wall time (s), launch to target", "published")["Blocking"] == "-"
    assert "both on the published clock" in tables["table5"].note


def test_table8_has_the_wall_of_each_clock(tmp_path: Path) -> None:
    folder = matrix(tmp_path / "sweep", SUITES[:1])
    for seed in SEEDS:
        edit(run_of(folder, SUITES[0], "ovl", seed).metrics, goodput_published_clock=20 / 3.5)
        edit(run_of(folder, SUITES[0], "blk", seed).metrics, goodput_published_clock=20 / 5.0)
    table = by_ident(folder)["table8"]
    assert first(
        row(table, "CIFAR-10 ResNet-18 base", "measured, published clock")["Ovl - Blk wall (s)"]
    ) == pytest.approx(-1.5)
    ours = first(
        row(table, "CIFAR-10 ResNet-18 base", "measured, launch to target")["Ovl - Blk wall (s)"]
    )
    ovl, blk = (recorded(folder, SUITES[0], arm, "wall_s") for arm in ("ovl", "blk"))
    assert ours == pytest.approx(mean(ovl) - mean(blk), rel=2e-3)


def test_suites_of_two_machines_are_not_averaged(tmp_path: Path) -> None:
    folder = matrix(tmp_path / "sweep", seeds=(1337,))
    for variant in ("ref", "blk", "ovl"):
        edit(run_of(folder, SUITES[1], variant).environment, cpu={"model": "another", "logical": 2})
    tables = by_ident(folder)
    assert (
        f"Listed, not averaged (another cpu than {SUITES[0]}): {SUITES[1]}."
        in tables["table5"].note
    )
    assert "Here runs differ in cpu." in tables["table3"].note
    wall = first(row(tables["table5"], "Wall time (s), launch to target", "measured")["Blocking"])
    assert wall == pytest.approx(
        mean([mean(recorded(folder, s, "blk", "wall_s", (1337,))) for s in (SUITES[0], SUITES[2])]),
        rel=1e-3,
    )


def test_reuse_is_told_from_the_manifest(tmp_path: Path, tables: dict[str, Table]) -> None:
    assert "Here all runs are of one code, one machine and one scale." in tables["table3"].note
    folder = matrix(tmp_path / "sweep", SUITES[:1], (1337,))
    manifest = folder / "manifest.csv"
    manifest.write_text(
        manifest.read_text().replace("completed,", "completed,mixed: another revision", 1)
    )
    assert (
        "Here 1 run reused in spite of another code or machine (manifest: mixed)."
        in by_ident(folder)["table3"].note
    )


def test_a_suite_without_one_of_the_published_arms_is_not_averaged(tmp_path: Path) -> None:
    folder = make_sweep(tmp_path / "sweep", [*cell(SUITES[0])[:2], *cell(SUITES[1])])
    table = by_ident(folder)["table5"]
    assert (
        f"Listed, not averaged (gate failed: arms): {SUITES[0]}." in table.note
        and "1 of 8 suites" in table.title
    )


def test_a_slice_has_its_suites_alone_and_the_loss_difference_of_the_records(
    tables: dict[str, Table],
) -> None:
    first_set = row(tables["table7"], "Data set", "CIFAR-10", "measured, launch to target")
    second = row(tables["table7"], "Data set", "CIFAR-100", "measured, launch to target")
    assert (first_set["n"], second["n"]) == ("6 pairs", "3 pairs")
    assert first_set["Loss difference change"].startswith("0 ") and second[
        "Loss difference change"
    ].startswith("+0.02")


def test_missing_and_refused_suites_are_named_and_never_averaged(tmp_path: Path) -> None:
    folder = matrix(tmp_path / "sweep", seeds=(1337,))
    edit(run_of(folder, "cifar100-r50-base", "ovl").verdict, status="invalid")
    tables = by_ident(folder)
    table5 = tables["table5"]
    assert (
        "2 of 8 suites" in table5.title
        and "Listed, not averaged (gate failed: verified): cifar100-r50-base." in table5.note
    )
    assert "Not run: cifar10-r50-base" in table5.note
    kept = SUITES[:2]
    wall = first(row(table5, "Wall time (s), launch to target", "measured")["Blocking"])
    assert wall == pytest.approx(
        mean([mean(recorded(folder, suite, "blk", "wall_s", (1337,))) for suite in kept]), rel=1e-3
    )
    assert row(table5, "Pass rate", "measured")["Overlapped"] == "0.6667"
    refused = row(tables["table8"], "CIFAR-100 ResNet-50 base", "measured, launch to target")
    assert {refused[column] for column in ("Ref GP", "Ovl vs Blk", "n")} == {"-"}
    assert "missing: cifar10-r50-base" in row(tables["table3"], "suites")["What differs"]


def test_several_configurations_of_one_arm_are_no_published_arm(tmp_path: Path) -> None:
    for every in (4, 5):
        for plan in cell("cifar10-r18-base"):
            make_run(tmp_path / "sweep" / f"{plan.variant}-{every}", replace(plan, every=every))
    assert by_ident(tmp_path / "sweep") == {}  # a sweep over a setting is no published experiment
    other = make_sweep(tmp_path / "other", cell("cifar10-r18-late"))
    table = by_ident(tmp_path / "sweep", other)["table5"]
    assert (
        "(several configurations of blk, ovl and ref): cifar10-r18-base." in table.note
        and "1 of 8 suites" in table.title
    )
    (wall,) = recorded(other, "cifar10-r18-late", "blk", "wall_s", (1337,))
    assert first(
        row(table, "Wall time (s), launch to target", "measured")["Blocking"]
    ) == pytest.approx(wall, rel=1e-3)


def test_what_differs_follows_from_the_runs_own_configuration(tmp_path: Path) -> None:
    (run,) = read(
        make_run(tmp_path / "run", Plan(suite="cifar10-r18-late", steps=30, every=50))
    ).runs
    found = {difference.key: str(difference) for difference in differences([run])}
    assert (
        found["target_steps"] == "steps 30 instead of 1,600"
        and found["failure.steps"] == "failure steps 24/45 instead of 800/1,400"
    )
    assert (
        found["dataset.name"] == "data set digits instead of cifar10"
        and found["device"] == "device cpu instead of cuda"
    )
    assert "checkpoint.every" not in found and "global_batch" not in found  # as published
    assert found["torch"] == "torch 2.15.0 instead of 2.10.0+cu128"
    run.config["global_batch"], run.config["checkpoint"]["every"] = 64, 7
    text = in_full(differences([run]), ["cifar10-r18-late"])
    assert (
        "batch 64 instead of 256" in text
        and "steps per checkpoint 7 instead of 50" in text
        and "Not stated in the report" in text
    )
    assert in_short(differences([run])).startswith("data and model, size, ranks")


def test_ranks_that_share_a_gpu_are_a_difference_of_every_table(tmp_path: Path) -> None:
    (run,) = read(make_run(tmp_path / "run", Plan(suite="cifar10-r18-late"))).runs
    run.environment["gpus"] = [{"name": "a GPU", "uuid": "u"}]
    run.config.update(device="cuda", backend="gloo", world_size=4)
    found = {difference.key: str(difference) for difference in differences([run])}
    assert (
        found["ranks_per_gpu"] == "ranks per GPU 4 instead of 1"
        and found["backend"] == "backend gloo instead of nccl"
    )
    assert "device" not in found and facts(run)["device"] == "cuda"


def test_controlled_and_varied_are_read_from_the_runs(
    tables: dict[str, Table], tmp_path: Path
) -> None:
    assert (
        row(tables["table4"], "Failure schedule")["Role here"] == "varied"
        and row(tables["table4"], "Seed count")["Role here"] == "controlled"
    )
    dataset = row(tables["table4"], "Dataset")
    assert (
        dataset["Role here"] == "controlled"
        and dataset["Values here"] == "digits"
        and "varied there, controlled here" in dataset["What differs"]
    )
    uneven = make_sweep(
        tmp_path / "uneven", [*cell("cifar10-r18-base"), *cell("cifar10-r18-base", 2027)[:2]]
    )
    assert row(by_ident(uneven)["table4"], "Seed count")["Role here"] == "varied"


def test_the_logged_fields_are_looked_for_in_the_runs(
    sweep: Path, tables: dict[str, Table], tmp_path: Path
) -> None:
    """Each field of the published table, and a run that lacks one."""
    assert all(
        cells[4] == "27" and not cells[5].startswith("missing") for cells in texts(tables["table1"])
    )
    named = {name for each in LOGGED if each.file.endswith("rankR.jsonl") for name in each.fields}
    assert named < {field.name for field in fields(RankLine)}
    shutil.copytree(sweep, tmp_path / "sweep")
    log = next((tmp_path / "sweep").glob("*-ref-*/logs/attempt-00/rank0.jsonl"))
    log.write_text(log.read_text(encoding="utf-8").replace('"loss"', '"lost"'), encoding="utf-8")
    broken = row(by_ident(tmp_path / "sweep")["table1"], "loss")
    assert (broken["Runs that have it"], broken["What differs"]) == (
        "26",
        "missing in 1 of 27 runs",
    )


def test_the_environment_is_that_of_the_runs(tables: dict[str, Table]) -> None:
    assert (
        row(tables["table2"], "Python")["Measured"] == "3.11.7"
        and row(tables["table2"], "CPU")["Measured"] == "a processor"
    )
    assert (
        row(tables["table2"], "DDP launch shape")["Published"]
        == "nproc_per_node=4 for all reported runs"
    )


def test_experiment_1_has_its_distances_and_the_matrix_stays_away(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep", cell("exp1"))
    diverge(run_of(sweep, "exp1", "blk"), 0.5, equal=False)
    tables = by_ident(sweep)
    assert list(tables) == ["exp1"] and "scale paper" in tables["exp1"].title
    area = row(tables["exp1"], "Blocking: loss AUC, absolute difference")
    assert area["Published"] == "0.0000" and first(area["Measured"]) == 9.5 and area["n"] == "1 run"
    assert row(tables["exp1"], "Overlapped: loss AUC, absolute difference")["Measured"] == "-"
    blk = row(tables["exp1"], "Goodput of blocking (steps/s), published clock")
    (recorded_one,) = recorded(sweep, "exp1", "blk", "goodput_published_clock", (1337,))
    assert blk["Published"] == "7.7947" and first(blk["Measured"]) == pytest.approx(
        recorded_one, rel=1e-3
    )


def test_experiment_2_compares_the_elastic_run_with_its_reference(tmp_path: Path) -> None:
    ref, _, _ = cell("exp2")
    sweep = make_sweep(tmp_path / "sweep", [ref, replace(ref, variant="elastic")])
    diverge(run_of(sweep, "exp2", "elastic"), 1.0, equal=False, l2=3.5)
    table = by_ident(sweep)["exp2"]
    assert (
        first(row(table, "Elastic: L2 of the parameters at the last common checkpoint")["Measured"])
        == 3.5
    )
    ratio = (
        recorded(sweep, "exp2", "elastic", "goodput", (1337,))[0]
        / recorded(sweep, "exp2", "ref", "goodput", (1337,))[0]
    )
    measured = row(table, "Elastic vs reference, ratio of means, launch to target")["Measured"]
    assert first(measured) == pytest.approx(100 * (ratio - 1), abs=0.006)


@pytest.mark.parametrize(
    "document", [{"loss": [], "state": 3, "final_equal": "no"}, {}, {"loss": {"auc": "x"}}]
)
def test_a_divergence_that_is_none_breaks_no_table(
    tmp_path: Path, document: dict[str, object]
) -> None:
    sweep = make_sweep(tmp_path / "sweep", cell("exp1"))
    write_json(run_of(sweep, "exp1", "blk").divergence, document)
    assert (
        row(by_ident(sweep)["exp1"], "Blocking: loss AUC, absolute difference")["Measured"] == "-"
    )


def test_a_sweep_of_other_suites_has_none(tmp_path: Path) -> None:
    assert by_ident(make_sweep(tmp_path / "sweep", cell("digits-cnn"))) == {}
