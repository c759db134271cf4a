"""The same kills under every recovery, by the command that the README names: which ends were exact,
and all of it in one report.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.runs import end_state, metrics, records_naming, supervisor
from tests.in_process import ecrl_in_process

DIED, SURVIVED = ["died"] * 3 + ["completed"], ["survived"] * 3 + ["completed"]
OUTCOMES = {
    "blk": DIED,
    "spares": DIED,
    "mem": DIED,
    "rollback": SURVIVED,
    "forward": SURVIVED,
    "skip": SURVIVED,
    "redistribute": SURVIVED,
}
IN_MEMORY = ("rollback", "forward", "skip", "redistribute")
LOSSY = ("forward", "skip")
UNDISTURBED = ("clean", "ref", "ref2")
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Judged and reported on."""
    folder = tmp_path_factory.mktemp("recoveries")
    ecrl_in_process(folder, "-m", "+matrix=recoveries", "seed=1337", "scale=smoke", "run_dir=sweep")
    said = ecrl_in_process(folder, "verify", "sweep").stdout
    assert (
        said.count(": valid (") == said.count(" (against ") == len(OUTCOMES) + len(UNDISTURBED)
    ), said
    # checkpoints, snapshots, survivors, newcomers
    assert said.count(" times a rank held what it was to resume from") == len(OUTCOMES), said
    reported = ecrl_in_process(folder, "report", "sweep")
    assert "Warning" not in reported.stderr and "Traceback" not in reported.stderr, reported.stderr
    return folder / "sweep"


def arms(sweep: Path) -> dict[str, Path]:
    """Without the reference of the arm with replicas, which the sweep trained beside its own."""
    return {path.name.split("-")[1]: path for path in sweep.glob("recoveries-*")}


def test_each_recovery_ends_as_it_promises(sweep: Path) -> None:
    runs = arms(sweep)
    assert {
        arm: [a["outcome"] for a in supervisor(runs[arm])["attempts"]] for arm in OUTCOMES
    } == OUTCOMES
    with_replicas = next((sweep / "references").iterdir())
    due = {
        arm: end_state(with_replicas if arm == "redistribute" else runs["clean"])
        for arm in OUTCOMES
    }
    assert [arm for arm in OUTCOMES if end_state(runs[arm]) != due[arm]] == list(LOSSY)
    assert [metrics(runs[arm])["lost_samples"] > 0 for arm in LOSSY] == [True, True]
    replayed = {arm: metrics(runs[arm])["replayed_steps"] for arm in OUTCOMES}
    assert replayed["blk"] == replayed["spares"] > 0 and {replayed[arm] for arm in IN_MEMORY} == {
        0
    }, replayed
    ways = {
        arm: {recovery["way"] for recovery in metrics(runs[arm])["recoveries"]} for arm in OUTCOMES
    }
    assert ways == {"blk": {"checkpoint"}, "spares": {"checkpoint"}, "mem": {"snapshot"}} | {
        arm: {"survivors"} for arm in IN_MEMORY
    }
    joined = {
        arm: [recovery["joined"] for recovery in metrics(runs[arm])["recoveries"]]
        for arm in OUTCOMES
    }
    assert joined == {arm: [0 if arm in ("blk", "mem") else 1] * 3 for arm in OUTCOMES}


def test_no_record_names_the_folder_that_the_run_lies_in(sweep: Path) -> None:
    """Blocking saves, snapshots in memory, survivors and newcomers."""
    assert {
        arm: named
        for arm, run in arms(sweep).items()
        if (named := records_naming(run, sweep.parent))
    } == {}


def test_one_report_has_the_goodput_of_all(sweep: Path) -> None:
    document = json.loads((sweep / "report" / "report.json").read_text())
    runs = arms(sweep)
    told = {run["variant"]: run["goodput"] for run in document["runs"]}
    assert told == {arm: metrics(run)["goodput"] for arm, run in runs.items()} and set(told) == {
        *OUTCOMES,
        *UNDISTURBED,
    }
    assert all(gate["passed"] for gate in document["gates"]["recoveries"])
