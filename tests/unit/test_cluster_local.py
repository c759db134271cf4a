"""The whole way through the plugin, with jobs on this machine: pickled, run, folded into the
manifest.
"""

from __future__ import annotations

import csv
from pathlib import Path

from ecrl_cli.records.layout import RunLayout
from tests.conftest import Ecrl


def test_a_sweep_whose_runs_are_jobs(ecrl: Ecrl, tmp_path: Path) -> None:
    run = [
        "dataset=digits",
        "model=small_cnn",
        "model.width=8",
        "global_batch=48",
        "target_steps=8",
        "checkpoint.every=4",
    ]
    arms = [
        "-m",
        *run,
        "supervision.launcher=zygote",
        "seed=1,2",
        "hydra/launcher=submitit_local",
        "hydra.launcher.timeout_min=5",
    ]
    ecrl("train", *arms, "run_dir=deep/../sweep")
    sweep = tmp_path / "sweep"
    with (sweep / "manifest.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["status"] for row in rows] == ["completed", "completed"]
    for row in rows:
        folder = RunLayout(sweep / row["run"])
        assert (
            "seed=" in (folder.hydra / "overrides.yaml").read_text()
            and folder.metrics.exists()
            and folder.outcome.exists()
        )
    ecrl("verify", "sweep")
