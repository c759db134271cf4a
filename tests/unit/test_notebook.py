"""The notebook in examples/ runs from its first cell to its last, over a sweep without a report,
and shows what the records say.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import pytest

from tests.unit.report_runs import arms, make_sweep

NOTEBOOK = json.loads(
    (Path(__file__).parents[2] / "examples" / "sweep.ipynb").read_text(encoding="utf-8")
)


def test_it_is_a_notebook_of_ten_cells_without_results() -> None:
    assert (NOTEBOOK["nbformat"], len(NOTEBOOK["cells"])) == (4, 10)
    assert len({cell["id"] for cell in NOTEBOOK["cells"]}) == 10
    assert all(
        cell["outputs"] == [] and cell["execution_count"] is None
        for cell in NOTEBOOK["cells"]
        if cell["cell_type"] == "code"
    )


def test_its_cells_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = make_sweep(tmp_path / "sweep", [plan for seed in (1, 2) for plan in arms(seed=seed)])
    monkeypatch.setenv("ECRL_SWEEP", str(sweep))
    matplotlib.use("Agg")
    names: dict[str, Any] = {}
    for cell in NOTEBOOK["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert len(plt.get_fignums()) == 5
    plt.close("all")
    assert len(names["runs"]) == 8 and names["verdicts"].loc["blk", "valid"] == 2
    assert set(names["restarts"]["arm"]) == {"blk", "ovl"} and set(names["checkpoints"]["arm"]) == {
        "ref",
        "blk",
        "ovl",
    }
    assert (
        names["curves"].groupby("run")["global_step"].max().eq(60).all()
        and names["again"].max() == 1
    )
    assert ((names["effects"]["arm"] == "ovl") & (names["effects"]["base"] == "blk")).any()
