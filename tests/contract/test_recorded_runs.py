"""Run directories of version 0.1.0 are judged and reported as that version did, and a stopped one
goes on.
"""

from __future__ import annotations

import csv
import json
import math
import tarfile
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.report.build import report
from ecrl_cli.verify.verify_run import verify_run
from tests.conftest import run_ecrl

RECORDED = Path(__file__).parent.parent / "recorded"
EXPECTED: dict[str, dict[str, Any]] = json.loads(
    (RECORDED / "v0.1.0.json").read_text(encoding="utf-8")
)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    with tarfile.open(RECORDED / "v0.1.0.tar.xz") as archive:
        archive.extractall(folder / "sweep", filter="data")
    return folder / "sweep"


@pytest.mark.parametrize("name", EXPECTED)
def test_a_run_of_before_is_judged_as_before(sweep: Path, name: str) -> None:
    verdict = verify_run(sweep / name)
    now = {finding.promise: finding.status for finding in verdict.findings}
    before = EXPECTED[name]["promises"]
    assert verdict.status == EXPECTED[name]["status"]
    # What was called valid without evidence is `not checked` today; nothing else may change, and no
    # new promise may be broken.
    assert {
        promise: status
        for promise, status in now.items()
        if now[promise] not in (before.get(promise), "not checked", "valid")
    } == {}
    assert {promise for promise, status in before.items() if status != "valid"} == {
        promise for promise, status in now.items() if status == "unknown"
    }


@pytest.mark.filterwarnings("ignore:constrained_layout not applied")
def test_runs_of_before_are_reported_as_before(sweep: Path, tmp_path: Path) -> None:
    report([sweep], tmp_path / "report")
    with (tmp_path / "report" / "runs.csv").open(encoding="utf-8", newline="") as file:
        now = {row["run"]: row for row in csv.DictReader(file)}
    for name, expected in EXPECTED.items():
        for column, before in expected["runs_csv"].items():
            value = now[name][column]
            assert value == before or math.isclose(float(value), float(before), rel_tol=1e-9), (
                f"{name}: {column} was {before}, is {value}"
            )


def test_a_stopped_run_of_before_goes_on(sweep: Path) -> None:
    words = [
        "+suite=digits-cnn",
        "target_steps=24",
        "checkpoint.every=6",
        "model.width=4",
        "checkpoint.keep=2",
        "failure.steps=[4]",
        "reference=none",
    ]
    # as they were; the refusal names what 0.2.0 decides otherwise
    words += ["state_digests=false", "ddp.find_unused_parameters=true"]
    done = run_ecrl(sweep, "train", *words, f"run_dir={sweep / 'stopped'}")
    assert done.stderr.endswith(f"next: ecrl verify {sweep / 'stopped'}\n")
    attempts = json.loads((sweep / "stopped" / "supervisor.json").read_text(encoding="utf-8"))[
        "attempts"
    ]
    assert attempts[-1]["resumed_from_step"] == 10
    status = {finding.promise: finding.status for finding in verify_run(sweep / "stopped").findings}
    assert (status["exactly-once"], status["no-acknowledged-loss"], status["target-reached"]) == (
        "valid",
        "valid",
        "valid",
    )
    assert status["checkpoints-accounted"] == status["state-consistent"] == "valid", (
        "hashed by SHA-256 as the run began"
    )
