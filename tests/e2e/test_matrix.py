"""Matrices as the README runs them: a cell of one with composed names; and the published one at its
smallest scale on real images, killed three times on the way: 96 runs, every one valid, every gate
green.
"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import command, run_ecrl

DATA = os.environ.get("ECRL_TEST_DATA", "")
KILLED_AT = (5, 30, 55)  # finished runs
DONE = re.compile(r"sweep: (\d+) of 96 done")


def rows(folder: Path) -> list[dict[str, str]]:
    manifest = folder / "exp4" / "manifest.csv"
    if not manifest.exists():
        return []
    with manifest.open() as file:
        return list(csv.DictReader(file))


def finished(folder: Path) -> dict[str, bytes]:
    """By run, the metrics of what the manifest calls completed."""
    names = [row["run"] for row in rows(folder) if row["status"].startswith("completed")]
    return {name: (folder / "exp4" / name / "metrics.json").read_bytes() for name in names}


def test_a_cell_of_the_matrix_of_failures_is_valid(tmp_path: Path) -> None:
    """Its suite is named by an interpolation, which Hydra stores unresolved beside the run."""
    run_ecrl(
        tmp_path,
        "-m",
        "+matrix=failures",
        "scale=smoke",
        "failure=kill",
        "variant=blk",
        "run_dir=sweep",
    )
    (verdict,) = json.loads(run_ecrl(tmp_path, "verify", "sweep", "--json").stdout).values()
    assert verdict["status"] == "valid"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not DATA, reason="ECRL_TEST_DATA names no folder with cifar10/ and cifar100/")
def test_exp4_survives_three_kills_without_losing_a_finished_run(tmp_path: Path) -> None:
    sweep = [
        "-m",
        "+matrix=exp4",
        "scale=smoke",
        f"dataset.root={DATA}",
        "dataset.checksum=none",
        "run_dir=exp4",
    ]
    for number in KILLED_AT:
        process = subprocess.Popen(
            command(*sweep),
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        next(
            line for line in process.stderr if (done := DONE.match(line)) and int(done[1]) >= number
        )
        before = finished(tmp_path)
        process.kill()
        process.communicate()
        assert len(before) >= number
        after = finished(tmp_path)
        assert {name: after[name] for name in before} == before
    subprocess.run(command(*sweep), cwd=tmp_path, check=True)
    assert {name: finished(tmp_path)[name] for name in before} == before
    assert len(rows(tmp_path)) == 96 and {row["status"] for row in rows(tmp_path)} == {
        "completed",
        "completed_prev",
    }
    run_ecrl(tmp_path, "verify", "exp4", timeout=600)
    run_ecrl(tmp_path, "report", "exp4")
    gates = json.loads((tmp_path / "exp4" / "report" / "report.json").read_text())["gates"]
    assert len(gates) == 8 and all(gate["passed"] for suite in gates.values() for gate in suite)
