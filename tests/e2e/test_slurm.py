"""Past one machine: a real Slurm on this host, a job per run, several nodes per run, a node lost in
the middle.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ecrl_cli.records.layout import RunLayout
from tests.conftest import command, run_ecrl
from tests.e2e.runs import end_state, supervisor, tiny
from tests.e2e.slurm import Slurm, slurm, why_not

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "-"),
]
ENGINE = [
    "hydra/launcher=submitit_slurm",
    "hydra.launcher.partition=all",
    "hydra.launcher.timeout_min=30",
]


def long(*changes: str) -> list[str]:
    """A run that lasts long enough to lose something in the middle."""
    return tiny(
        "failure=none",
        "failure.steps=",
        "failure.rank=",
        "target_steps=1500",
        "checkpoint.every=100",
        *changes,
    )


def spread(*changes: str) -> list[str]:
    return long("supervision.launcher=torchrun", "supervision.nodes=2", "world_size=2", *changes)


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with slurm(tmp_path_factory.mktemp("slurm")) as running:
        yield running


def train(
    cluster: Slurm, folder: Path, *arguments: str, check: int | None = 0
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **cluster.environment}
    done = subprocess.run(
        command("train", *arguments),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )
    assert check is None or done.returncode == check, (
        f"{done.stdout}\n{done.stderr}\n{logs(folder)}"
    )
    return done


def logs(folder: Path) -> str:
    return "\n".join(
        f"{path}\n{path.read_text()[-3000:]}" for path in sorted(folder.rglob("*_log.*"))
    )


def background(cluster: Slurm, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, **cluster.environment}
    return subprocess.Popen(
        command("train", *arguments),
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def going(submitter: subprocess.Popen[str]) -> bool:
    assert submitter.poll() is None, submitter.communicate()[0]
    return True


def states(sweep: Path) -> list[str]:
    with (sweep / "manifest.csv").open() as file:
        return [row["status"] for row in csv.DictReader(file)]


def steps(run: Path, attempt: int = 0) -> int:
    log = RunLayout(run).attempt(attempt).rank(0)
    return log.read_text().count("\n") if log.exists() else 0


def size_of(run: Path) -> list[int]:
    return [attempt["world_size"] for attempt in supervisor(run)["attempts"]]


def only_not_proven(folder: Path) -> None:
    """All that a run which was interrupted can show without a reference."""
    said = run_ecrl(folder, "verify", "run", check=3).stdout
    assert (
        "run: unknown (1 promise not proven, " in said
        and "not proven: no undisturbed run to compare with" in said
    ), said


def test_a_sweep_is_a_job_per_run_and_ends_as_it_would_here(cluster: Slurm, tmp_path: Path) -> None:
    sweep = ["-m", *tiny("seed=1,2,3")]
    train(cluster, tmp_path, *sweep, *ENGINE, "run_dir=there")
    assert states(tmp_path / "there") == ["completed"] * 3
    outcomes = [
        json.loads(path.read_text()) for path in (tmp_path / "there").glob("*/.hydra/outcome.json")
    ]
    assert [outcome["exit_code"] for outcome in outcomes] == [0, 0, 0]
    run_ecrl(tmp_path, "train", *sweep, "run_dir=here")
    here = {
        run.name: end_state(run)
        for run in (tmp_path / "here").iterdir()
        if RunLayout(run).config.exists()
    }
    assert here == {name: end_state(tmp_path / "there" / name) for name in here} and len(here) == 3
    assert (
        run_ecrl(tmp_path, "verify", "there", check=3).stdout.count(
            ": unknown (1 promise not proven, "
        )
        == 3
    )
    train(cluster, tmp_path, *sweep, *ENGINE, "run_dir=there")  # no job is left to submit
    assert states(tmp_path / "there") == ["completed_prev"] * 3


def test_a_killed_submitter_loses_no_job_and_starts_none_twice(
    cluster: Slurm, tmp_path: Path
) -> None:
    """Those that run are known by their locks, the one that still waits for its turn by Slurm's
    queue.
    """
    sweep = [
        "-m",
        *long("seed=1,2,3"),
        *ENGINE,
        "hydra.launcher.array_parallelism=2",
        "run_dir=sweep",
    ]
    submitter = background(cluster, tmp_path, *sweep)
    runs = tmp_path / "sweep"
    cluster.wait(
        "both runs",
        lambda: going(submitter) and len([r for r in runs.glob("*-s*") if steps(r) > 20]) == 2,
        120,
    )
    submitter.kill()
    submitter.communicate()
    again = train(cluster, tmp_path, *sweep, check=8)
    assert "job(s) to" not in again.stderr and sorted(states(runs)) == [
        "pending",
        "running",
        "running",
    ]
    cluster.wait("the end of all jobs", lambda: not cluster.ask("squeue", "-h").strip(), 300)
    train(cluster, tmp_path, *sweep)
    assert states(runs) == ["completed_prev"] * 3
    run_ecrl(tmp_path, "verify", "sweep")


@pytest.mark.parametrize("wanted", [long(), spread()], ids=["one node", "two nodes"])
def test_a_job_that_must_make_room_is_started_anew_and_goes_on(
    cluster: Slurm, tmp_path: Path, wanted: list[str]
) -> None:
    submitter = background(
        cluster, tmp_path, *wanted, *ENGINE, "hydra.launcher.max_num_timeout=2", "run_dir=run"
    )
    run = tmp_path / "run"
    cluster.wait("a checkpoint", lambda: going(submitter) and steps(run) > 150, 120)
    cluster.ask(
        "scancel",
        f"--signal={signal.SIGUSR2.name}",
        cluster.ask("squeue", "-h", "-o", "%i").strip(),
    )
    said, _ = submitter.communicate(timeout=400)
    assert submitter.returncode == 0, said
    attempts = supervisor(run)["attempts"]
    assert [attempt["outcome"] for attempt in attempts] == ["stopped", "completed"] and attempts[1][
        "resumed_from_step"
    ] >= 100
    only_not_proven(tmp_path)


def test_a_run_on_two_nodes_goes_on_with_what_is_left(cluster: Slurm, tmp_path: Path) -> None:
    # the second finds its rank gone
    failure = ["failure=kill", "failure.steps=[17,1433]", "failure.rank=3"]
    wanted = spread(
        "world_size=4", "supervision.on_node_loss=shrink", "checkpoint=overlapped", *failure
    )
    submitter = background(cluster, tmp_path, *wanted, *ENGINE, "run_dir=run")
    run = tmp_path / "run"
    cluster.wait(
        "a checkpoint after the planned death",
        lambda: going(submitter) and steps(run, 1) > 150,
        200,
    )
    gone = cluster.allocated()[1]
    cluster.lose(gone)
    said, _ = submitter.communicate(timeout=400)
    assert submitter.returncode == 0, said
    assert size_of(run) == [4, 4, 2]
    assert json.loads(RunLayout(run).attempt(2).launch.read_text())["silent"] == [gone]
    first, second, _ = supervisor(run)["attempts"]
    assert (first["rank"], first["signal"]) == (
        3,
        9,
    ), "a death on another node is known for what it is"
    assert second["outcome"] == "died" and second["last_step"] >= 150
    only_not_proven(tmp_path)


def test_a_run_on_two_nodes_is_queued_again_and_goes_on_at_full_size(
    cluster: Slurm, tmp_path: Path
) -> None:
    submitter = background(cluster, tmp_path, *spread(), *ENGINE, "run_dir=run")
    run = tmp_path / "run"
    cluster.wait("a checkpoint", lambda: going(submitter) and steps(run) > 150, 120)
    cluster.lose(cluster.allocated()[1])
    said, _ = submitter.communicate(timeout=500)
    assert submitter.returncode == 0, said
    assert size_of(run) == [2, 2] and len(supervisor(run)["sessions"]) == 2
    only_not_proven(tmp_path)


def test_nothing_outlives_a_killed_supervisor_on_any_node(cluster: Slurm, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    words = " ".join(command("train", *spread("run_dir=run")))
    # the job lives on: Slurm cleans nothing up
    script.write_text(f"#!/bin/bash\ncd {tmp_path}\n{words} &\necho $! > pid\nwait\nsleep 60\n")
    cluster.ask("sbatch", "-N2", f"--output={tmp_path}/job.out", str(script))
    run = tmp_path / "run"
    cluster.wait("some steps", lambda: steps(run) > 20, 120)
    steps_of_job = cluster.ask("squeue", "-h", "-s", "-o", "%i").split()
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    cluster.wait("the end of the ranks", lambda: not working(run), 15)
    cluster.wait(
        "the end of the step",
        lambda: len(cluster.ask("squeue", "-h", "-s", "-o", "%i").split()) < len(steps_of_job),
        30,
    )
    cluster.ask("scancel", "-u", "root")
    cluster.wait("the end of the job", lambda: not cluster.ask("squeue", "-h").strip(), 30)


def working(run: Path) -> str:
    found = subprocess.run(
        ["pgrep", "-f", f"ecrl_cli.*{run}"], capture_output=True, text=True, check=False
    )
    return found.stdout
