"""What a sweep varied is what the report compares: arms named by it, effects of each axis, slices,
interactions; references serve as `ref`.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from scipy import special

from ecrl_cli.records.layout import REFERENCES, RunLayout
from ecrl_cli.report.build import report
from ecrl_cli.report.model.axes import axes_of
from ecrl_cli.report.model.comparison import Comparison, compare
from ecrl_cli.report.model.contrast import REPEATED_REFERENCE
from ecrl_cli.report.model.effects import LEAST_QUADRUPLES, effects, interactions
from ecrl_cli.report.model.inputs import run_inputs
from ecrl_cli.report.model.references import read_references
from ecrl_cli.report.model.run_record import read_runs
from ecrl_cli.report.tables.records import effect_rows, interaction_rows
from ecrl_cli.report.text.summary import summarize
from tests.unit.report_runs import SEEDS, Plan, compared, edit, make_run, timed

SWEPT: dict[str, tuple[str, ...]] = {
    "dataset": ("cifar10", "cifar100"),
    "model": ("resnet18", "resnet50"),
    "strategy": ("blocking", "overlapped"),
    "write_mode": ("atomic_dirsync", "atomic_nodirsync"),
    "schedule": ("base", "late"),
}
FACTORS = {
    "cifar100": 1.25,
    "resnet50": 2.0,
    "overlapped": 0.8,
    "atomic_nodirsync": 0.9,
    "late": 1.1,
}
# of the runs in their folder, in no order of the levels
PLACES = [13 * number % 32 for number in range(32)]
BOTH = 0.7  # of the wall time where resnet50 is saved overlapped: the one interaction


def cells() -> Iterator[tuple[str, ...]]:
    return product(*SWEPT.values())


def plan_of(cell: tuple[str, ...]) -> Plan:
    settings: dict[str, Any] = dict(zip(SWEPT, cell, strict=True))
    settings["suite"] = f"{settings['dataset']}-r{settings['model'][-2:]}-{settings['schedule']}"
    return Plan(
        "custom",
        kills=(24, 45) if settings["schedule"] == "base" else (30, 51),
        scale="paper",
        **settings,
    )


def wall_of(cell: tuple[str, ...]) -> float:
    wall = (
        10.0
        * math.prod(FACTORS.get(level, 1.0) for level in cell)
        * (BOTH if {"resnet50", "overlapped"} <= set(cell) else 1.0)
    )
    # no two runs take exactly as long
    return wall * (1 + 0.001 * (sum(map(ord, "".join(cell))) % 7))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five axes, 32 runs, suites named as the published ones; with their references."""
    folder = tmp_path_factory.mktemp("sweep")
    for number, cell in enumerate(cells()):
        timed(make_run(folder / f"run-{PLACES[number]:02}", plan_of(cell)), wall_of(cell))
    for dataset, model in product(SWEPT["dataset"], SWEPT["model"]):
        plan = Plan(
            "ref", "", kills=(), every=60, dataset=dataset, model=model, scale="paper", verdict=None
        )
        timed(make_run(folder / REFERENCES / f"{dataset}-{model}", plan), 5.0)
    return folder


@pytest.fixture(scope="module")
def sweep(folder: Path) -> Comparison:
    return with_references(folder)


def with_references(folder: Path) -> Comparison:
    runs = read_runs(run_inputs([folder]))
    return compare(runs, read_references(runs))


def metrics_on_file(folder: Path) -> dict[tuple[str, ...], dict[str, Any]]:
    """metrics.json of each run by its cell, read from its own config.json."""
    found = {}
    for run in folder.glob("run-*"):
        config = json.loads((run / "config.json").read_text())["config"]
        cell = (
            config["dataset"]["name"],
            config["model"]["name"],
            config["checkpoint"]["strategy"],
            config["write_mode"]["name"],
        )
        found[*cell, config["schedule"]["name"]] = json.loads((run / "metrics.json").read_text())
    return found


def by_hand(folder: Path, axis: int, **held: str) -> list[float]:
    """The ratios of goodput minus 1 of one axis, from metrics.json alone; `held`: the level of
    other axes.
    """
    goodput = {cell: document["goodput"] for cell, document in metrics_on_file(folder).items()}
    base, level = list(SWEPT.values())[axis]
    kept = [
        cell
        for cell in goodput
        if cell[axis] == level
        and all(cell[list(SWEPT).index(name)] == value for name, value in held.items())
    ]
    return [goodput[cell] / goodput[*cell[:axis], base, *cell[axis + 1 :]] - 1 for cell in kept]


def interval_by_hand(values: list[float]) -> tuple[float, float]:
    mean = sum(values) / len(values)
    sd = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    half = float(special.stdtrit(len(values) - 1, 0.975)) * sd / math.sqrt(len(values))
    return mean - half, mean + half


def test_each_swept_key_is_an_axis_and_what_follows_from_it_is_none(sweep: Comparison) -> None:
    found = [(axis.name, axis.levels) for axis in axes_of(sweep.runs)]
    assert found == [
        ("dataset", ("cifar10", "cifar100")),
        ("model", ("resnet18", "resnet50")),
        ("checkpoint", ("blocking", "overlapped")),
        ("write mode", ("atomic_dirsync", "atomic_nodirsync")),
        ("schedule", ("base", "late")),
    ]


def test_arms_are_named_by_what_differs(sweep: Comparison) -> None:
    own = {arm.label for arm in sweep.arms if not arm.is_reference}
    assert own == {
        "blocking · dirsync",
        "blocking · nodirsync",
        "overlapped · dirsync",
        "overlapped · nodirsync",
    }


@pytest.mark.parametrize("axis", range(5), ids=list(SWEPT))
def test_an_effect_is_what_metrics_json_says_by_hand(
    folder: Path, sweep: Comparison, axis: int
) -> None:
    values = by_hand(folder, axis)
    effect = effects(sweep)[axis]
    assert effect.whole.pair.n == len(values) == 16
    assert effect.whole.effect == pytest.approx(
        sum(values) / 16
    ) and effect.whole.interval == pytest.approx(interval_by_hand(values))
    assert {part.level.value for part in effect.slices} == {
        level for name, levels in SWEPT.items() if name != list(SWEPT)[axis] for level in levels
    }
    for name, levels in SWEPT.items():
        for level in levels if name != list(SWEPT)[axis] else ():
            part = next(part for part in effect.slices if part.level.value == level)
            held = by_hand(folder, axis, **{name: level})
            assert (part.contrast.pair.n, part.contrast.effect) == (
                8,
                pytest.approx(sum(held) / 8),
            ), (name, level)


def test_an_interaction_is_the_ratio_of_two_ratios(folder: Path, sweep: Comparison) -> None:
    found = {
        (each.level.axis.name, each.other.axis.name): each.contrast for each in interactions(sweep)
    }
    assert len(found) == 10, "every two of five axes"
    alone = found["model", "checkpoint"]
    assert alone.pair.n == 8 and alone.effect == pytest.approx(1 / BOTH - 1, abs=0.02)
    assert abs(found["dataset", "model"].effect) < 0.02, "they act independently"


def test_too_few_quadruples_are_no_interaction(tmp_path: Path) -> None:
    for seed in SEEDS[: LEAST_QUADRUPLES - 1]:
        for strategy, mode in product(SWEPT["strategy"], SWEPT["write_mode"]):
            make_run(
                tmp_path / f"{strategy}-{mode}-{seed}",
                Plan("custom", seed=seed, strategy=strategy, write_mode=mode),
            )
    shown = compared(tmp_path)
    assert [effect.whole.pair.n for effect in effects(shown)] == [4, 4] and interactions(
        shown
    ) == []


def test_a_published_suite_without_its_arms_passes_its_gates(sweep: Comparison) -> None:
    assert sweep.exit_code == 0 and len(sweep.passed) == 8, sweep.gates
    said = summarize(sweep)
    assert said.headline == "Every recovery was judged valid"
    assert "Model: resnet50 has " in " ".join(
        said.sentences
    ) and "Checkpoint: overlapped has " in " ".join(said.sentences)


def test_references_serve_as_ref_and_are_no_runs(folder: Path, sweep: Comparison) -> None:
    assert len(sweep.runs) == 32 and {arm.variant for arm in sweep.arms if arm.is_reference} == {
        "ref"
    }
    goodput = {cell: document["goodput"] for cell, document in metrics_on_file(folder).items()}
    made = report([folder], folder.parent / "out")
    assert made.exit_code == 0, made.text
    with (made.page.parent / "runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 32
    for row in rows:
        number = PLACES.index(int(row["run"].removeprefix("run-")))
        assert float(row["goodput_vs_ref"]) == pytest.approx(
            goodput[list(cells())[number]] / (60 / 5.0) - 1
        ), row["run"]


@pytest.mark.parametrize("spoilt", ["other machine", "other training", "unfinished", "own ref"])
def test_a_reference_that_cannot_serve_is_none(tmp_path: Path, spoilt: str) -> None:
    make_run(tmp_path / "ovl", Plan("ovl", strategy="overlapped"))
    reference = make_run(
        tmp_path / REFERENCES / "ref",
        Plan("ref", "", kills=(), every=60, steps=70 if spoilt == "other training" else 60),
    )
    if spoilt == "other machine":
        edit(RunLayout(reference).environment, cpu={"model": "another", "logical": 2})
    elif spoilt == "unfinished":
        RunLayout(reference).metrics.unlink()
        RunLayout(reference).supervisor.unlink()
    elif spoilt == "own ref":
        make_run(tmp_path / "ref", Plan("ref", kills=()))
    assert [arm for arm in with_references(tmp_path).arms if arm.is_reference] == []


def test_a_reference_that_saves_once_is_no_price_of_failures_alone(tmp_path: Path) -> None:
    for seed in SEEDS:
        timed(make_run(tmp_path / f"blk-{seed}", Plan("blk", seed=seed)), 20.0)
        timed(
            make_run(
                tmp_path / REFERENCES / f"ref-{seed}",
                Plan("ref", "", seed=seed, kills=(), every=60),
            ),
            10.0,
        )
    text = " ".join(summarize(with_references(tmp_path)).sentences)
    assert (
        "Failures and checkpoints together cost 50.0% of goodput (blk against ref" in text
        and "Failures alone" not in text
    )


def test_a_lone_run_of_a_published_suite_ends_with_0_and_has_its_ref(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", Plan("ovl", "cifar10-r50-late", strategy="overlapped"))
    make_run(tmp_path / REFERENCES / "ref", Plan("ref", "", kills=(), every=60))
    made = report([run], tmp_path / "out")
    assert made.exit_code == 0, made.text
    with (made.page.parent / "runs.csv").open(newline="") as file:
        assert [float(row["goodput_vs_ref"]) < 0 for row in csv.DictReader(file)] == [True]


def test_the_noise_floor_stands_beside_an_effect(tmp_path: Path) -> None:
    for seed in SEEDS:
        for variant, mode in product(("ref", "ref2", "blk"), SWEPT["write_mode"]):
            kills = (24, 45) if variant == "blk" else ()
            wall = (
                (20.0 if kills else 10.0)
                * (1.2 if mode == "atomic_dirsync" else 1.0)
                * (1.01 if variant == "ref2" else 1.0)
            )
            timed(
                make_run(
                    tmp_path / f"{variant}-{mode}-{seed}",
                    Plan(variant, seed=seed, kills=kills, write_mode=mode),
                ),
                wall,
            )
    found = {effect.axis.name: effect for effect in effects(compared(tmp_path))}
    whole = found["write mode"].whole
    assert whole.pair.n == 9 and whole.effect == pytest.approx(0.2)
    assert whole.floor is not None and (whole.floor.source, whole.against_floor) == (
        REPEATED_REFERENCE,
        "above the floor",
    )
    assert {part.contrast.scope for part in found["write mode"].slices} == {
        "variant ref",
        "variant ref2",
        "variant blk",
    }
    assert found["variant"].whole.title == "blk against ref", (
        "the repeated reference is the noise, and has no effect"
    )


def test_numbers_are_in_order_and_a_level_without_a_partner_has_no_effect(tmp_path: Path) -> None:
    for every in (6, 10, 12):
        make_run(tmp_path / f"every-{every}", Plan("custom", every=every))
    make_run(tmp_path / "adamw", Plan("custom", every=20, optimizer="adamw"))
    shown = compared(tmp_path)
    assert [(effect.axis.name, effect.whole.title) for effect in effects(shown)] == [
        ("every", "every 10 against every 6"),
        ("every", "every 12 against every 6"),
    ]
    assert [arm.label for arm in shown.arms] == [
        "sgd · every 6",
        "sgd · every 10",
        "sgd · every 12",
        "adamw · every 20",
    ]


def test_the_files_of_effects_hold_all_of_it(sweep: Comparison) -> None:
    rows = [row for row in effect_rows(sweep) if row["measure"] == "goodput"]
    assert len(rows) == 5 * (1 + 4 * 2) and {row["key"] for row in rows} >= {
        "checkpoint.strategy",
        "write_mode.name",
    }
    assert {row["slice_axis"] for row in rows} == {
        "",
        "dataset",
        "model",
        "checkpoint",
        "write mode",
        "schedule",
    }
    assert len([row for row in interaction_rows(sweep) if row["measure"] == "goodput"]) == 10


def test_runs_of_two_machines_are_in_no_pair(tmp_path: Path) -> None:
    for strategy in SWEPT["strategy"]:
        for model in SWEPT["model"]:
            make_run(
                tmp_path / f"{strategy}-{model}",
                replace(Plan("custom", model), strategy=strategy, model=model),
            )
    for run in tmp_path.glob("*-resnet50"):
        edit(RunLayout(run).environment, cpu={"model": "another", "logical": 2})
    assert [(effect.axis.name, effect.whole.pair.n) for effect in effects(compared(tmp_path))] == [
        ("checkpoint", 2)
    ]
