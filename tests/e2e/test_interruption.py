"""Whatever ends the supervisor, nothing of it lives on, nothing is lost, and the same command goes
on.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from ecrl_cli.checkpoint.format.names import MODEL
from ecrl_cli.linux.processes import printing_to
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.supervision.attempts.stop_signals import ECHO_S
from tests.conftest import comes_true, command, processes_of
from tests.e2e.runs import end_state, metrics, steps_logged, supervisor, tiny
from tests.in_process import ecrl_in_process

LONG = tiny(
    "target_steps=60", "failure=none", "failure.steps=", "failure.rank=", "supervision.launcher="
)
SELDOM = [key if key != "checkpoint.every=6" else "checkpoint.every=25" for key in LONG]


UNDISTURBED = [*LONG, "supervision.launcher=zygote", "variant=ref", "run_dir=reference"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where every run here must end, whatever starts its ranks."""
    folder = tmp_path_factory.mktemp("undisturbed")
    ecrl_in_process(folder, "train", *UNDISTURBED)
    return folder / "reference"


def start(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    """As `nohup ecrl train ... &` in a script does: SIGINT and SIGHUP begin ignored."""
    ignoring = "trap '' INT HUP; exec \"$@\""
    words = ["sh", "-c", ignoring, "sh", *command("train", *arguments)]
    return subprocess.Popen(
        words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def wait_for_step(run: Path, step: int, process: subprocess.Popen[str], attempt: int = 0) -> None:
    """Return once rank 0 has logged `step` lines (a bounded wait for an event, not a pause)."""
    comes_true(lambda: steps_logged(run, attempt) >= step or process.poll() is not None)
    assert process.poll() is None and steps_logged(run, attempt) >= step, (
        f"step {step} was not reached: {process.communicate()[0]}"
    )


def gone(folder: Path) -> bool:
    return comes_true(lambda: not processes_of(folder))


@pytest.mark.parametrize("launcher", [pytest.param("torchrun", marks=pytest.mark.slow), "zygote"])
def test_a_killed_supervisor_leaves_nothing_and_the_run_goes_on(
    tmp_path: Path, reference: Path, launcher: str
) -> None:
    arguments = [*LONG, f"supervision.launcher={launcher}", "variant=ovl", "run_dir=run"]
    process = start(tmp_path, *arguments)
    wait_for_step(tmp_path / "run", 20, process)
    process.kill()
    process.communicate()
    assert gone(tmp_path / "run"), processes_of(tmp_path)
    ecrl_in_process(tmp_path, "train", *arguments)
    assert end_state(tmp_path / "run") == end_state(reference)
    assert len(supervisor(tmp_path / "run")["sessions"]) == 2
    ecrl_in_process(tmp_path, "verify", "run", "--reference", str(reference))


def ranks_of(run: Path, attempt: int) -> list[int]:
    """The processes of the ranks, by rank: the zygote forks them in order."""
    belongs = printing_to(str(RunLayout(run).attempt(attempt).folder))
    return sorted(pid for pid in psutil.pids() if belongs(pid))


@pytest.mark.parametrize("strategy", ["ovl", pytest.param("blk", marks=pytest.mark.slow)])
def test_a_hang_and_a_stop_with_grace_change_nothing_of_the_result(
    tmp_path: Path, reference: Path, strategy: str
) -> None:
    """A rank is stopped: found, named, the job goes on. Ctrl-C: the last step done is durable, and
    the run ends as if nothing had been.
    """
    run = tmp_path / "run"
    arguments = [
        *SELDOM,
        "supervision.launcher=zygote",
        "supervision.hang_timeout_s=2",
        f"variant={strategy}",
        "run_dir=run",
    ]
    process = start(tmp_path, *arguments)
    wait_for_step(run, 30, process)
    os.kill(ranks_of(run, 0)[1], signal.SIGSTOP)
    wait_for_step(run, 8, process, attempt=1)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=180)
    assert process.returncode == 130, said
    assert not processes_of(run)
    assert "Traceback" not in said
    hung, stopped = supervisor(run)["attempts"]
    assert (hung["outcome"], hung["hang"]["ranks"], stopped["outcome"]) == (
        "hung",
        [1],
        "stopped",
    ), said
    assert "hung: rank 1 is stopped in" in said
    assert "train_loop.py" in RunLayout(run).attempt(0).stacks(1).read_text()
    assert f"step {stopped['last_step']} is durable" in said, "all that was done is kept"
    assert stopped["last_step"] % 25, "the stop's own checkpoint, not one that was due"
    ecrl_in_process(tmp_path, "train", *arguments)
    assert supervisor(run)["attempts"][2]["resumed_from_step"] == stopped["last_step"]
    assert end_state(run) == end_state(reference)
    ecrl_in_process(tmp_path, "verify", "run", "--reference", str(reference))


def test_a_second_supervisor_is_turned_away_and_a_second_ctrl_c_ends_all_at_once(
    tmp_path: Path, reference: Path
) -> None:
    """And the run resumes."""
    arguments = [
        *LONG,
        "supervision.launcher=zygote",
        "supervision.grace_s=3600",
        "supervision.hang_timeout_s=3600",
        "variant=ovl",
        "run_dir=run",
    ]
    process = start(tmp_path, *arguments)
    wait_for_step(tmp_path / "run", 20, process)
    os.kill(ranks_of(tmp_path / "run", 0)[1], signal.SIGSTOP)  # the first one is heard by nobody
    assert str(process.pid) in ecrl_in_process(tmp_path, "train", *arguments, check=8).stderr
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)  # at once: the same request, said again
    assert process.stdout is not None
    assert any("a last checkpoint is made first" in line for line in process.stdout)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=1.5 * ECHO_S)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=180)
    assert process.returncode in (130, 143), said
    assert not processes_of(tmp_path / "run")
    assert supervisor(tmp_path / "run")["terminal_status"] == "stopped"
    assert "Traceback" not in said
    sealed = ecrl_in_process(tmp_path, "verify", "run", check=3).stdout
    # also a run that was stopped; going on breaks the seal
    assert "records-sealed: sealed" in sealed
    ecrl_in_process(tmp_path, "train", *arguments)
    assert metrics(tmp_path / "run")["committed_steps"] == 60
    assert (
        "records-sealed: sealed"
        in ecrl_in_process(tmp_path, "verify", "run", "--reference", str(reference)).stdout
    )


def test_a_checkpoint_damaged_between_two_attempts_is_rejected_by_name(
    tmp_path: Path, reference: Path
) -> None:
    arguments = [*LONG, "supervision.launcher=zygote", "variant=ref", "run_dir=run"]
    process = start(tmp_path, *arguments)
    wait_for_step(tmp_path / "run", 20, process)
    process.terminate()
    process.communicate(timeout=180)
    assert process.returncode == 143
    newest = sorted((tmp_path / "run" / "checkpoints").glob("step_*"))[-1]
    damage(newest / MODEL)
    ecrl_in_process(tmp_path, "train", *arguments)
    rejected = [r for a in supervisor(tmp_path / "run")["attempts"] for r in a["rejected"]]
    assert [newest.name in r["path"] and r["layer"] == "hash" for r in rejected] == [True]
    ecrl_in_process(tmp_path, "verify", "run", "--reference", str(reference))
    assert end_state(tmp_path / "run") == end_state(reference)


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)


def test_a_finished_run_has_nothing_to_do(reference: Path) -> None:
    assert "nothing to do" in ecrl_in_process(reference.parent, "train", *UNDISTURBED).stderr


def test_when_the_restarts_are_spent_it_says_why(tmp_path: Path) -> None:
    result = ecrl_in_process(
        tmp_path,
        "train",
        *tiny("failure.steps=[3,5,7]", "checkpoint=none", "checkpoint.every="),
        "supervision.max_restarts=1",
        "run_dir=run",
        check=7,
    )
    assert "restart" in result.stderr
    assert supervisor(tmp_path / "run")["terminal_status"] == "gave_up"
