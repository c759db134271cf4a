"""What the tables say equals what the runs recorded, and nothing incomparable is averaged or
compared.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from ecrl_cli.metrics.statistics import ratio_of_means, summary
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.report.build import report
from ecrl_cli.report.model.contrast import NO_FLOOR
from ecrl_cli.report.tables.renderers import csv_of
from ecrl_cli.report.tables.table import records_table
from tests.unit.report_runs import Plan, Simulation, arms, edit, make_run, make_sweep

SEEDS = (1337, 2027, 4242)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def compared(folder: Path) -> dict[tuple[str, str, str, str], dict[str, str]]:
    """comparisons.csv by suite, arm, base and measure."""
    return {
        (row["suite"], row["arm"], row["base"], row["measure"]): row
        for row in rows(folder / "comparisons.csv")
        if row.get("arm")
    }


def by_variant(found: list[dict[str, str]]) -> dict[str, dict[str, str]]:
    return {row["variant"]: row for row in found}


@pytest.mark.usefixtures("undrawn")
def test_every_number_of_runs_csv_is_the_recorded_one(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep", arms())
    folder = report([sweep]).page.parent
    found = by_variant(rows(folder / "runs.csv"))
    assert set(found) == {"clean", "ref", "blk", "ovl"}
    for variant, row in found.items():
        said = json.loads(
            (sweep / f"digits-cnn-kill-{variant}-s1337" / "metrics.json").read_text(
                encoding="utf-8"
            )
        )
        plain = {
            key: said[key]
            for key in ("wall_s", "goodput", "restarts", "replayed_steps", "committed_steps")
        }
        assert {key: float(row[key]) for key in plain} == plain
        assert {key: float(row[f"seconds_{key}"]) for key in said["seconds"]} == said["seconds"]
        assert {key: float(row[f"checkpoint_{key}"]) for key in said["checkpoints"]} == said[
            "checkpoints"
        ]
        assert (
            row["verdict"] == "valid"
            and row["final_parameters_digest"] == said["final"]["parameters_digest"]
        )
    latency, interval = (float(found["ovl"][f"save_{key}_s"]) for key in ("latency", "interval"))
    assert (
        latency == pytest.approx(0.12)
        and interval > 0.5
        and float(found["ovl"]["save_latency_share"]) == latency / interval
    )
    blk, ref = float(found["blk"]["goodput"]), float(found["ref"]["goodput"])
    assert float(found["blk"]["goodput_vs_ref"]) == pytest.approx(blk / ref - 1, rel=1e-12)
    assert found["ref"]["goodput_vs_ref"] == "" and found["clean"]["stall_per_checkpoint_s"] == ""


@pytest.mark.usefixtures("undrawn")
def test_summary_csv_is_the_statistics_of_the_runs(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep", [plan for seed in SEEDS for plan in arms(seed=seed)])
    folder = report([sweep]).page.parent
    runs = rows(folder / "runs.csv")
    goodput = {
        v: [float(row["goodput"]) for row in runs if row["variant"] == v]
        for v in ("clean", "ref", "blk", "ovl")
    }
    for variant, row in by_variant(rows(folder / "summary.csv")).items():
        expected = summary(goodput[variant])
        shown = [
            float(row[f"goodput_{key}"])
            for key in ("mean", "sd", "ci95_low", "ci95_high", "bca_low", "bca_high")
        ]
        assert shown == [
            expected.mean,
            expected.sd,
            expected.low,
            expected.high,
            expected.boot_low,
            expected.boot_high,
        ]
        assert (row["n"], row["averaged"], row["scale"]) == ("3", "True", "smoke")
    ovl = compared(folder)["digits-cnn-kill", "ovl", "blk", "goodput"]
    assert float(ovl["ratio_of_means"]) == ratio_of_means(goodput["ovl"], goodput["blk"]) - 1
    assert float(ovl["mean_of_ratios_mean"]) == pytest.approx(
        sum(a / b for a, b in zip(goodput["ovl"], goodput["blk"], strict=True)) / 3 - 1
    )
    assert (ovl["pairs"], ovl["scale"], ovl["against_floor"], ovl["signs_positive"]) == (
        "3",
        "smoke",
        NO_FLOOR,
        "3",
    )
    clocks = {measure for _, _, _, measure in compared(folder)}
    assert {
        "goodput",
        "goodput_published_clock",
        "wall_s",
        "write_per_checkpoint_s",
        "replay_s",
    } <= clocks


@pytest.mark.usefixtures("undrawn")
def test_every_checkpoint_and_every_restart_has_one_row(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep", arms())
    folder = report([sweep]).page.parent
    saves, restarts = rows(folder / "checkpoints.csv"), rows(folder / "restarts.csv")
    for row in rows(folder / "runs.csv"):
        mine = [save for save in saves if save["run"] == row["run"]]
        assert len(mine) == float(row["checkpoint_submitted"]) and len(
            {(s["attempt"], s["global_step"]) for s in mine}
        ) == len(mine)
        assert sum(float(save["stall_s"]) for save in mine) == pytest.approx(
            float(row["checkpoint_stall_s"])
        )
        assert sum(save["end"] == "lost" for save in mine) == float(row["checkpoint_lost"])
        again = [restart for restart in restarts if restart["run"] == row["run"]]
        assert len(again) == int(row["restarts"]) and sum(
            int(r["replayed_steps"]) for r in again
        ) == int(row["replayed_steps"])
        assert sum(float(r["replay_s"]) for r in again) == pytest.approx(
            float(row["seconds_replay"]), abs=1e-6
        )
    assert {save["end"] for save in saves} == {"committed"} and {
        save["scale"] for save in saves
    } == {"smoke"}
    assert all(
        float(r["import_s"]) == pytest.approx(0.4) and float(r["detect_s"]) == pytest.approx(0.08)
        for r in restarts
    )


@pytest.mark.usefixtures("undrawn")
def test_one_run_has_no_interval(tmp_path: Path) -> None:
    folder = report([make_sweep(tmp_path / "sweep", arms())]).page.parent
    assert all(
        row["goodput_sd"] == row["goodput_ci95_low"] == row["goodput_ci95_high"] == ""
        for row in rows(folder / "summary.csv")
    )


@pytest.mark.parametrize(
    "break_it",
    "verdict checkpoints target time records attempts ends environment artifacts arms".split(),
)
@pytest.mark.usefixtures("undrawn")
def test_a_suite_that_fails_a_gate_is_listed_and_not_averaged(
    tmp_path: Path, break_it: str
) -> None:
    sweep = make_sweep(tmp_path / "sweep", [*arms(), *arms("other-suite")])
    broken = RunLayout(sweep / "digits-cnn-kill-blk-s1337")
    said = json.loads(broken.metrics.read_text(encoding="utf-8"))
    if break_it == "verdict":
        edit(broken.verdict, status="invalid")
    elif break_it == "checkpoints":
        edit(
            broken.metrics,
            checkpoints={**said["checkpoints"], "committed": said["checkpoints"]["committed"] - 1},
        )
    elif break_it == "target":
        edit(broken.metrics, committed_steps=said["committed_steps"] - 1)
    elif break_it == "time":
        edit(broken.metrics, seconds={**said["seconds"], "residual": said["wall_s"] * 0.1})
    elif break_it == "records":
        edit(broken.metrics, restarts=said["restarts"] + 1)
    elif break_it == "attempts":
        edit(broken.metrics, restarts=said["restarts"] + 1)
        edit(broken.supervisor, restarts=said["restarts"] + 1)
    elif break_it == "ends":
        counts = said["checkpoints"]
        edit(
            broken.metrics,
            checkpoints={
                **counts,
                "committed": counts["committed"] - 1,
                "lost": counts["lost"] + 1,
            },
        )
    elif break_it == "artifacts":
        (broken.logs / "attempt-00" / "rank1.jsonl").unlink()
    elif break_it == "arms":
        make_run(sweep / "one-more-seed", Plan(seed=2027))
    else:
        broken.environment.write_text('{"python": "3.99"}')
    result = report([sweep])
    found = rows(result.page.parent / "summary.csv")
    assert {row["suite"]: row["averaged"] for row in found} == {
        "digits-cnn-kill": "False",
        "other-suite": "True",
    }
    assert all(row["goodput_mean"] == "" for row in found if row["suite"] == "digits-cnn-kill")
    assert {suite for suite, *_ in compared(result.page.parent)} == {"other-suite"}
    assert result.exit_code == 1 and "gate failed" in result.text


@pytest.mark.parametrize("verdict", [None, "unknown"])
@pytest.mark.usefixtures("undrawn")
def test_what_is_not_verified_is_unknown(tmp_path: Path, verdict: str | None) -> None:
    result = report([make_run(tmp_path / "run", Plan(verdict=verdict))])
    assert result.exit_code == 3


@pytest.mark.usefixtures("undrawn")
def test_an_unfinished_run_is_listed_with_its_reason_and_never_compared(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep", arms())
    edit(
        sweep / "digits-cnn-kill-ovl-s1337" / "metrics.json",
        terminal_status="running",
        committed_steps=12,
        final=None,
    )
    with (sweep / "manifest.csv").open("a") as file:
        file.write("later,,digits-cnn-kill,ovl,4242,pending,\n")
    result = report([sweep])
    found = {row["run"]: row for row in rows(result.page.parent / "runs.csv")}
    assert found["digits-cnn-kill-ovl-s1337"]["left_out"] == "has not ended (step 12 of 60)"
    assert found["later"]["left_out"] == "never started (manifest: pending)"
    assert "ovl" not in {row["arm"] for row in rows(result.page.parent / "summary.csv")}
    assert "not compared: later: never started" in result.text and "later" in result.page.read_text(
        encoding="utf-8"
    )
    assert result.exit_code == 1


@pytest.mark.usefixtures("undrawn")
def test_a_damaged_run_is_listed_and_the_others_are_reported(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep", arms())
    (sweep / "digits-cnn-kill-blk-s1337" / "supervisor.json").unlink()
    (sweep / "digits-cnn-kill-ovl-s1337" / "logs" / "attempt-00" / "spans_rank0.jsonl").write_text(
        "x\n"
    )
    result = report([sweep])
    found = {row["variant"]: row for row in rows(result.page.parent / "runs.csv")}
    assert found["blk"]["left_out"] == "nothing on record (completed)" and found["ref"]["goodput"]
    assert found["ovl"]["left_out"].startswith(
        "its records cannot be read (logs/attempt-00/spans_rank0.jsonl: "
    )
    assert "spans_rank0.jsonl" in result.page.read_text(encoding="utf-8")


@pytest.mark.usefixtures("undrawn")
def test_variants_that_differ_in_a_setting_are_not_averaged_together(tmp_path: Path) -> None:
    for every in (5, 10):
        for variant, kills in (("ref", ()), ("blk", (24,))):
            make_run(
                tmp_path / "sweep" / f"{variant}-{every}", Plan(variant, every=every, kills=kills)
            )
    found = {
        row["arm"]: row for row in rows(report([tmp_path / "sweep"]).page.parent / "summary.csv")
    }
    assert set(found) == {f"{v} · every {n}" for v in ("ref", "blk") for n in (5, 10)}
    blk, ref = (float(found[f"{v} · every 5"]["goodput_mean"]) for v in ("blk", "ref"))
    pairs = {
        (arm, base): row
        for (_, arm, base, measure), row in compared(tmp_path / "sweep" / "report").items()
        if measure == "goodput"
    }
    assert set(pairs) == {(f"blk · every {n}", f"ref · every {n}") for n in (5, 10)}
    assert float(pairs["blk · every 5", "ref · every 5"]["ratio_of_means"]) == pytest.approx(
        blk / ref - 1
    )


@pytest.mark.usefixtures("undrawn")
def test_only_runs_that_must_end_alike_are_compared(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep", [Plan("ref", kills=(), seed=1), Plan("blk", seed=2)])
    found = by_variant(rows(report([sweep]).page.parent / "runs.csv"))
    assert found["blk"]["goodput_vs_ref"] == ""


@pytest.mark.usefixtures("undrawn")
def test_a_loss_that_is_no_number_does_not_break_the_report(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    document = Simulation(Plan()).metrics()
    document["final"]["loss"] = None
    document["mean_loss"] = {"1": 2.0, "2": None, "3": 1.0}
    (run / "metrics.json").write_text(json.dumps(document))
    result = report([run])
    assert (
        json.loads((result.page.parent / "report.json").read_text(encoding="utf-8"))["runs"][0][
            "final_loss"
        ]
        is None
    )


def test_the_report_is_the_same_when_made_again(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep", arms())
    before = {p.name: p.read_bytes() for p in report([sweep]).page.parent.rglob("*") if p.is_file()}
    after = {p.name: p.read_bytes() for p in report([sweep]).page.parent.rglob("*") if p.is_file()}
    assert before == after and {
        "goodput.pdf",
        "goodput.png",
        "loss.png",
        "timeline-1.pdf",
        "report.md",
    } <= set(after)


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@sum"])
def test_no_cell_of_a_csv_is_a_formula(text: str) -> None:
    assert (
        csv_of(records_table([{"run": text, "change": -0.5, "suite": "a-b"}]))
        .decode()
        .splitlines()[1]
        == f"'{text},-0.5,a-b"
    )


def test_a_dash_for_what_was_not_tried_stays_one() -> None:
    assert csv_of(records_table([{"run": "-", "suite": "a"}])).decode().splitlines()[1] == "-,a"
