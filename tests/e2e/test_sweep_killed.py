"""A sweep that is killed without warning, and started again: nothing finished is done again,
nothing is lost, every run is valid.
"""

from __future__ import annotations

import csv
import subprocess
from pathlib import Path

from tests.conftest import comes_true, command, processes_of
from tests.e2e.runs import steps_logged, supervisor, tiny
from tests.in_process import ecrl_in_process

SWEEP = [
    "-m",
    *tiny("failure=", "failure.steps=", "failure.rank=", "target_steps=30"),
    "variant=ref,ref2,blk,ovl",
    "run_dir=all",
]
RECORDS = ("metrics.json", "supervisor.json", "config.json", "environment.json")


def rows(folder: Path) -> list[dict[str, str]]:
    path = folder / "all" / "manifest.csv"
    with path.open() as file:
        return list(csv.DictReader(file))


def wait_until_second_run_trains(folder: Path, process: subprocess.Popen[str]) -> Path:
    """The second run's folder once rank 0 has logged its tenth step (a bounded wait for an event,
    not a pause).
    """

    def second() -> Path:
        return folder / "all" / rows(folder)[1]["run"]

    def trains() -> bool:
        return (folder / "all" / "manifest.csv").exists() and steps_logged(second()) >= 10

    came = comes_true(lambda: process.poll() is not None or trains())
    assert came and process.poll() is None, (
        f"the second run did not get to step 10: {process.communicate()[0]}"
    )
    return second()


def test_a_killed_sweep_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command(*SWEEP), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    second = wait_until_second_run_trains(tmp_path, process)
    process.kill()
    process.communicate()
    assert [row["status"] for row in rows(tmp_path)] == [
        "completed",
        "running",
        "pending",
        "pending",
    ]
    assert comes_true(lambda: not processes_of(tmp_path), 10)
    first = tmp_path / "all" / rows(tmp_path)[0]["run"]
    before = {name: (first / name).read_bytes() for name in RECORDS}

    said = ecrl_in_process(tmp_path, *SWEEP)
    assert [row["status"] for row in rows(tmp_path)] == [
        "completed_prev",
        "completed",
        "completed",
        "completed",
    ]
    assert {name: (first / name).read_bytes() for name in RECORDS} == before, (
        "a finished run was touched"
    )
    assert len(supervisor(second)["sessions"]) == 2
    assert "sweep: 4 of 4 done, 0 failed" in said.stderr
    ecrl_in_process(tmp_path, "verify", "all")
