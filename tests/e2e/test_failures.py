"""Every way to die, by the code path of the command: a recovery is valid, ends bit for bit where
the undisturbed run ends, and leaves nothing.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ecrl_cli.records.layout import RunLayout
from tests.conftest import command, processes_of, run_ecrl
from tests.e2e.runs import end_state, metrics, supervisor, tiny
from tests.in_process import ecrl_in_process

# Runs of 24 steps, a checkpoint every 6. Several failures in one run, so that a death costs a
# relaunch and no run of its own.
MOMENTS = (
    "kill@2.start:1,kill@3.forward/0.5:1,backward@8/0.25:0,kill@10.optimizer:1,kill@13.capture:0,"
    "kill@15.load:0,kill@15:0+1,exit@20"
)
ERRORS = "raise@3:1,oom@5:1,nan@8:1,slow_rank@14:1*0.02"
SAVES = "enospc@4,eio@9,writer@14%after_rename,slow_disk@3*0.01"
DAMAGE = "corrupt@14:1,kill@0.9s:1"
QUICK = {"moments": ("blk", MOMENTS), "errors": ("ovl", ERRORS)}
LONG = {
    "moments overlapped": ("ovl", MOMENTS),
    "errors blocking": ("blk", ERRORS),
    "saves": ("blk", SAVES),
    "saves overlapped": ("ovl", SAVES),
    "damage": ("blk", DAMAGE),
    "damage overlapped": ("ovl", DAMAGE),
    "writer": ("ovl", "writer@4,writer@9%before_stage,writer@14%half_commit"),
    "hangs": ("blk", "stop@9:1,stop@14.forward:0"),
    "supervisor": ("blk", "supervisor@9"),
    "term": ("ovl", "term@9.backward"),
    "readonly": ("ovl", "readonly@9"),
    "errors in memory": ("mem", ERRORS),
    "saves in memory": ("mem", SAVES),
    "damage in memory": ("mem", DAMAGE),
    "writer in memory": ("mem", "writer@4,writer@9%before_stage,writer@14%half_commit"),
    "hangs in memory": ("mem", "stop@9:1,stop@14.forward:0"),
    "stops in memory": ("mem", "readonly@4,supervisor@9.forward,term@14"),
    "all three": ("blk", "readonly@4,supervisor@9.forward,term@14"),
}
SHAPE = ["failure=listed", "failure.steps=", "failure.rank=", "supervision.hang_timeout_s=1.5"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    ecrl_in_process(
        folder,
        "train",
        *tiny("failure=", "failure.steps=", "failure.rank="),
        "variant=ref",
        "run_dir=ref",
    )
    return folder / "ref"


def check(
    tmp_path: Path, reference: Path, variant: str, entries: str, *more: str
) -> dict[str, Any]:
    """Run it; gives supervisor.json."""
    ecrl_in_process(
        tmp_path,
        "train",
        *tiny(*SHAPE, *more),
        f"failure.entries=[{entries}]",
        f"variant={variant}",
        "run_dir=run",
    )
    said = ecrl_in_process(tmp_path, "verify", "run", "--reference", str(reference)).stdout
    assert "run: valid" in said, said
    assert end_state(tmp_path / "run") == end_state(reference)
    layout = RunLayout(tmp_path / "run")
    assert len(list(layout.fired.glob("*.json"))) == len(json.loads(layout.failures.read_text()))
    return supervisor(tmp_path / "run")


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in LONG)]
)
def test_a_run_comes_back_exactly(tmp_path: Path, reference: Path, name: str) -> None:
    check(tmp_path, reference, *(QUICK | LONG)[name], "state_digests=true")


@pytest.mark.parametrize(
    "launcher",
    ["zygote", pytest.param("torchrun", marks=[pytest.mark.slow, pytest.mark.timeout(600)])],
)
def test_in_memory_at_most_the_step_in_progress_is_done_again(
    tmp_path: Path, reference: Path, launcher: str
) -> None:
    """Whoever dies, whenever; rank 0 in the middle of a snapshot and all ranks at once too. Where a
    checkpoint is as new, it is taken.
    """
    record = check(
        tmp_path,
        reference,
        "mem",
        MOMENTS,
        "state_digests=true",
        f"supervision.launcher={launcher}",
    )
    first, *later = record["attempts"]
    assert not first["memory"] and all(
        a["memory"] == "snapshot" or (a["resumed_from"] and a["resumed_from_step"] % 6 == 0)
        for a in later
    )
    assert sum(a["memory"] == "snapshot" for a in later) >= 5
    found, reached = metrics(tmp_path / "run"), 0
    for a in record["attempts"]:
        assert reached - a["resumed_from_step"] <= 1, "more than the step in progress was lost"
        reached = max(reached, a["last_step"] or 0)
    assert found["replayed_steps"] <= found["restarts"] == len(later)
    assert found["checkpoints"]["submitted"] == found["checkpoints"]["committed"] == 4
    assert (
        found["snapshots"]["taken"] >= 20 - found["restarts"] and found["snapshots"]["copy_s"] > 0
    )


def test_in_memory_nothing_outlives_the_supervisor_but_what_is_durable(
    tmp_path: Path, reference: Path
) -> None:
    """And what is in memory alone where it should be durable is saved by those who go on with
    it.
    """
    # in that second the checkpoint of step 6 becomes durable
    entries = "kill@4:1,slow_rank@8:1*1,supervisor@9,writer@12%before_stage,kill@12:1"
    record = check(tmp_path, reference, "mem", entries)
    assert [(a["resumed_from_step"], a["memory"]) for a in record["attempts"]] == [
        (0, ""),
        (4, "snapshot"),
        (6, ""),
        (12, "snapshot"),
    ]
    assert (
        metrics(tmp_path / "run")["checkpoints"] | {"submitted": 5, "committed": 4, "lost": 1}
        == metrics(tmp_path / "run")["checkpoints"]
    )


@pytest.mark.slow
def test_a_killed_supervisor_is_replaced_by_its_keeper(tmp_path: Path, reference: Path) -> None:
    record = check(tmp_path, reference, "blk", "supervisor@9")
    assert [session["ended_at"] is None for session in record["sessions"]] == [True, False]
    assert [a["outcome"] for a in record["attempts"]] == ["died", "completed"]


@pytest.mark.slow
@pytest.mark.needs("private network")
@pytest.mark.parametrize("launcher", ["torchrun", "zygote"])
def test_the_network_between_the_ranks_goes_down(
    tmp_path: Path, reference: Path, launcher: str
) -> None:
    record = check(tmp_path, reference, "ovl", "partition@9", f"supervision.launcher={launcher}")
    assert [a["outcome"] for a in record["attempts"]] == ["hung", "completed"]


@pytest.mark.slow
def test_a_node_goes_with_its_agent(tmp_path: Path, reference: Path) -> None:
    check(tmp_path, reference, "ovl", "kill@9:node,kill@14:all", "supervision.launcher=torchrun")


def test_a_loss_that_is_nan_each_time_ends_in_a_storm(tmp_path: Path) -> None:
    hopeless = tiny("failure=", "failure.steps=", "failure.rank=")
    said = ecrl_in_process(
        tmp_path, "train", *hopeless, "optimizer.lr=1e38", "variant=blk", "run_dir=run", check=7
    ).stderr
    assert (
        "restart storm: 2 attempts in a row gained no step" in said
        and "E-loss loss: is nan at step" in said
    )
    assert not list(RunLayout(tmp_path / "run").checkpoints.glob("step_*"))


@pytest.mark.slow
def test_a_stop_from_outside_ends_the_keeper_too(tmp_path: Path) -> None:
    """The supervisor obeys, and nobody starts another, although an entry that would is still
    planned.
    """
    arguments = tiny(*SHAPE, "target_steps=5000", "checkpoint.every=50")
    process = subprocess.Popen(
        command(
            "train", *arguments, "failure.entries=[supervisor@4000]", "variant=blk", "run_dir=run"
        ),
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    # earlier lines name steps too: those of the planned failures
    next(line for line in process.stderr if "/5000, loss " in line)
    process.terminate()
    _, said = process.communicate(timeout=180)
    assert process.returncode == 143, said
    assert supervisor(tmp_path / "run")["terminal_status"] == "stopped" and not processes_of(
        tmp_path / "run"
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_matrix_of_failures_is_valid_in_every_cell(tmp_path: Path) -> None:
    run_ecrl(tmp_path, "-m", "+matrix=failures", "scale=smoke", "run_dir=sweep", timeout=1700)
    said = run_ecrl(tmp_path, "verify", "sweep", timeout=300).stdout
    assert said.count(": valid (") == said.count(" (against ") == 76, said
