"""Synthetic sweeps under the names of the published suites, and what was compared with their
references.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ecrl_cli.records.layout import RunLayout
from ecrl_cli.report.model.comparison import Comparison, compare
from ecrl_cli.report.model.inputs import find_inputs
from ecrl_cli.report.model.run_record import read_run
from ecrl_cli.storage.files import write_json
from tests.unit.report_runs import Plan, judged_again, make_sweep

SUITES = ("cifar10-r18-base", "cifar10-r18-late", "cifar100-r50-base")
SEEDS = (1337, 2027, 4242)


def cell(suite: str, seed: int = 1337, steps: int = 20, scale: str = "paper") -> list[Plan]:
    """The three published arms; the failures of a `late` suite come later, its reference is the
    `base` one's.
    """
    shared: dict[str, Any] = {
        "suite": suite,
        "seed": seed,
        "steps": steps,
        "scale": scale,
        "every": 4,
        "step_s": 0.09 if "r50" in suite else 0.05,
    }
    kills = (10, 18) if suite.endswith("late") else (7, 14)
    return [
        Plan("ref", kills=(), **shared),
        Plan("blk", kills=kills, **shared),
        Plan("ovl", kills=kills, strategy="overlapped", **shared),
    ]


def matrix(folder: Path, suites: tuple[str, ...] = SUITES, seeds: tuple[int, ...] = SEEDS) -> Path:
    return make_sweep(
        folder, [plan for suite in suites for seed in seeds for plan in cell(suite, seed)]
    )


def run_of(sweep: Path, suite: str, variant: str, seed: int = 1337) -> RunLayout:
    return RunLayout(sweep / f"{suite}-{variant}-s{seed}")


def diverge(layout: RunLayout, mean: float, *, equal: bool, l2: float = 0.0) -> None:
    """What verification leaves behind where it compared a run with its reference."""
    loss = {
        "steps": 20,
        "maximum": 2 * mean,
        "mean": mean,
        "auc": 19 * mean,
        "first_differing_step": None if equal else 8,
    }
    state = {
        name: {"l2": l2, "relative_l2": l2 / 10, "differing": 0}
        for name in ("parameters", "buffers")
    }
    ends = {"parameters": equal, "buffers": equal, "optimizer": equal, "rng": True}
    write_json(
        layout.divergence,
        {
            "schema_version": 1,
            "reference": "ref",
            "loss": loss,
            "final_equal": ends,
            "state_step": 20,
            "state": state,
        },
    )
    judged_again(layout)


def read(*folders: Path) -> Comparison:
    return compare([read_run(place) for place in find_inputs(list(folders)).runs])


def recorded(
    sweep: Path, suite: str, variant: str, key: str, seeds: tuple[int, ...] = SEEDS
) -> list[float]:
    """A number of metrics.json, or of its checkpoints, by seed."""
    documents = [
        json.loads(run_of(sweep, suite, variant, seed).metrics.read_text()) for seed in seeds
    ]
    return [
        float(document[key] if key in document else document["checkpoints"][key])
        for document in documents
    ]
