"""Quality on held-out data: the same training with and without it, what is done again measures the
same, and the judge sees what was changed.
"""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from ecrl_cli.history.lineage import evaluations, lineage
from ecrl_cli.history.load import load
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.report.build import report
from ecrl_cli.runs.tracking.follow import Follower
from ecrl_cli.runs.tracking.sinks import Tracker
from ecrl_cli.verify.verdict import INVALID, UNKNOWN, VALID, render
from ecrl_cli.verify.verify_run import verify_run
from tests.e2e.runs import end_state, last_losses, metrics, tiny
from tests.in_process import ecrl_in_process

# BatchNorm and dropout, two kills off the boundary: step 8 is done, and evaluated, twice.
CASE = ("dataset.held_out=297", "model.dropout=0.1", "device=cpu")
EVALUATED = [4, 8, 12, 16, 20, 24]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """`plain`: undisturbed, not evaluated. `ref`: undisturbed, evaluated. `blk`: killed,
    evaluated.
    """
    folder = tmp_path_factory.mktemp("evaluated")
    none, every = (
        ("failure=none", "failure.steps=", "failure.rank="),
        (
            "evaluate.every=4",
            "evaluate.batch=64",
        ),
    )
    for name, more in (("plain", none), ("ref", (*none, *every)), ("blk", every)):
        ecrl_in_process(folder, "train", *tiny(*CASE, *more), f"run_dir={folder / name}")
    return {name: folder / name for name in ("plain", "ref", "blk")}


def lines(run: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in sorted(run.glob("logs/*/evaluations.jsonl"))
        for line in path.read_text().splitlines()
    ]


def test_the_training_is_the_same_with_and_without(runs: dict[str, Path]) -> None:
    plain = end_state(runs["plain"])
    for name in ("ref", "blk"):
        found = end_state(runs[name])
        accuracy = found.pop("accuracy")
        assert found == plain and 0.2 < accuracy <= 1
        assert all(
            last_losses(runs[name], rank) == last_losses(runs["plain"], rank) for rank in (0, 1)
        )


def test_what_is_done_again_is_measured_again_and_is_the_same(runs: dict[str, Path]) -> None:
    assert [line["global_step"] for line in lines(runs["ref"])] == EVALUATED
    assert sorted(line["global_step"] for line in lines(runs["blk"])) == [4, 8, 8, 12, 16, 20, 24]
    assert {line["global_step"]: line["measures"] for line in lines(runs["blk"])} == {
        line["global_step"]: line["measures"] for line in lines(runs["ref"])
    }
    verdict = verify_run(runs["blk"], runs["ref"])
    assert verdict.status == VALID, render(verdict)
    said = {finding.promise: finding.message for finding in verdict.findings}
    assert (
        "6 evaluations on held-out data equal" in said["same-trajectory"]
        and "1 evaluation what was measured before" in said["same-trajectory"]
    )
    assert "7 evaluations on held-out data" in said["records-consistent"]
    other = verify_run(runs["blk"], runs["plain"])
    # a reference that measured nothing vouches for the training
    assert other.status == VALID, render(other)


def test_metrics_say_what_was_measured_and_what_it_took(runs: dict[str, Path]) -> None:
    document = metrics(runs["blk"])
    assert [each["global_step"] for each in document["evaluations"]] == EVALUATED
    assert (
        document["final"]["accuracy"]
        == document["evaluations"][-1]["accuracy"]
        == lines(runs["blk"])[-1]["measures"]["accuracy"]
    )
    assert all(each["samples"] == 297 for each in document["evaluations"])
    assert document["seconds"]["evaluate"] > 0 == metrics(runs["plain"])["seconds"]["evaluate"]
    assert (
        metrics(runs["plain"])["evaluations"] == []
        and "accuracy" not in metrics(runs["plain"])["final"]
    )


def test_the_report_shows_each_arms_quality(runs: dict[str, Path], tmp_path: Path) -> None:
    result = report([runs["ref"], runs["blk"]], tmp_path / "page", every_run=True)
    assert (
        "Quality on held-out data at the target" in result.text
        and "held-out accuracy" in result.text
    )
    assert "Quality on held-out data" in (tmp_path / "page/index.html").read_text()
    with (tmp_path / "page/runs.csv").open() as file:
        assert {float(row["accuracy"]) for row in csv.DictReader(file)} == {
            metrics(runs["ref"])["final"]["accuracy"]
        }


def test_a_tracker_is_told_each_evaluation_once(runs: dict[str, Path], tmp_path: Path) -> None:
    copy = tmp_path / "blk"
    shutil.copytree(runs["blk"], copy, symlinks=True)
    said: list[tuple[int, str]] = []

    class Told:
        def step(self, step: int, values: Mapping[str, float]) -> None:
            said.extend((step, name) for name in values if name in ("loss", "held_out_accuracy"))

    follower = Follower(copy, "prometheus", "")
    follower.tracker = cast("Tracker", Told())
    follower.more()
    assert [step for step, name in said if name == "held_out_accuracy"] == EVALUATED
    assert [step for step, _ in said] == sorted(step for step, _ in said) and len(said) == 24 + len(
        EVALUATED
    )
    follower.more()
    assert len(said) == 24 + len(EVALUATED)


def spoiled(
    run: Path,
    folder: Path,
    change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]],
    attempt: int = -1,
) -> Path:
    """A copy of `run` with the evaluations of one attempt changed."""
    copy = folder / run.name
    shutil.copytree(run, copy, symlinks=True)
    path = RunLayout(copy).attempt(RunLayout(copy).attempts()[attempt]).evaluations
    changed = change([json.loads(line) for line in path.read_text().splitlines()])
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in changed))
    return copy


def with_measures(line: dict[str, Any], **measures: float) -> dict[str, Any]:
    return line | {"measures": line["measures"] | measures}


Change = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
SPOILT: dict[str, tuple[int, Change, str, str, str]] = {
    "another loss where a step was measured twice": (
        *(1, lambda found: [with_measures(found[0], loss=1.5), *found[1:]]),
        *("same-trajectory", INVALID, "step 8: held-out loss"),
    ),
    "another accuracy than the reference's": (
        *(-1, lambda found: [with_measures(found[0], accuracy=1.0), *found[1:]]),
        *("same-trajectory", INVALID, "step 16: held-out accuracy 1.0 for"),
    ),
    "an accuracy that is no share of the samples": (
        *(-1, lambda found: [with_measures(found[0], accuracy=0.5), *found[1:]]),
        *(
            "records-consistent",
            INVALID,
            "has an accuracy of 0.5, which is no share of 297 samples",
        ),
    ),
    "one left out": (
        -1,
        lambda found: found[1:],
        "records-consistent",
        UNKNOWN,
        "quality was to be measured after step 16",
    ),
    "the last one left out": (
        -1,
        lambda found: found[:-1],
        "records-consistent",
        UNKNOWN,
        "quality was to be measured after step 24",
    ),
    "one that was not due": (
        *(-1, lambda found: [found[0] | {"global_step": 17}, *found[1:]]),
        *("records-consistent", INVALID, "step 17 in attempt 2 was not due: evaluate.every is 4"),
    ),
    "fewer samples": (
        -1,
        lambda found: [found[0] | {"samples": 296}, *found[1:]],
        "records-consistent",
        INVALID,
        "not all of the same samples",
    ),
    "fewer samples than are held out": (
        *(-1, lambda found: [found[0] | {"samples": 296}, *found[1:]]),
        *(
            "records-consistent",
            INVALID,
            "quality was measured on 296 samples, config.json holds out 297",
        ),
    ),
    "shorter than its span": (
        *(-1, lambda found: [found[0] | {"seconds": found[0]["seconds"] / 2}, *found[1:]]),
        *("records-consistent", INVALID, "the spans of rank 0 do not book that as evaluate"),
    ),
    "another accuracy than final.json": (
        *(-1, lambda found: [*found[:-1], with_measures(found[-1], accuracy=1.0)]),
        *("records-consistent", INVALID, "final.json has an accuracy of"),
    ),
    "a time of another clock": (
        *(-1, lambda found: [found[0] | {"time": found[0]["time"] - 3.0}, *found[1:]]),
        *("time-conserved", INVALID, "the evaluation after step 16 of attempt 2 has a wall time "),
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_changed_evaluation_is_seen(name: str, runs: dict[str, Path], tmp_path: Path) -> None:
    attempt, change, promise, status, text = SPOILT[name]
    verdict = verify_run(spoiled(runs["blk"], tmp_path, change, attempt), runs["ref"])
    (finding,) = (each for each in verdict.findings if each.promise == promise)
    assert finding.status == status and any(
        text in said for said in (finding.message, *map(str, finding.evidence))
    ), render(verdict)


def test_of_a_step_that_was_measured_twice_the_last_counts(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    records = load(
        RunLayout(
            spoiled(
                runs["blk"],
                tmp_path,
                lambda found: [with_measures(found[0], loss=1.5), *found[1:]],
                1,
            )
        )
    )
    assert evaluations(records, lineage(records))[8].measures["loss"] == 1.5


def test_survivors_measure_what_the_undisturbed_run_measures(runs: dict[str, Path]) -> None:
    """Rank 1 dies right after an evaluation; rank 0 keeps its state, and its buffers, in memory,
    and a spare joins.
    """
    folder = runs["ref"].parent
    live = ("failure.steps=[8]", "recovery.name=immediate_rollback", "supervision.spares=1")
    ecrl_in_process(
        folder,
        "train",
        *tiny(*CASE, "evaluate.every=4", "evaluate.batch=64", *live),
        f"run_dir={folder / 'live'}",
    )
    assert [line["global_step"] for line in lines(folder / "live")] == EVALUATED
    assert [line["measures"] for line in lines(folder / "live")] == [
        line["measures"] for line in lines(runs["ref"])
    ]
    verdict = verify_run(folder / "live", runs["ref"])
    assert verdict.status == VALID, render(verdict)


def test_nothing_to_measure_on_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    refused = ecrl_in_process(
        tmp_path, "train", *tiny("evaluate.every=4"), f"run_dir={tmp_path / 'run'}", check=2
    )
    assert (
        refused.stderr.count("\n") == 1
        and "evaluate.every: digits has no held-out data here" in refused.stderr
    )
    assert not (tmp_path / "run").exists()
