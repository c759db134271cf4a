"""Processes are known by descriptor and by mark, killed by descriptor, and their ends are read
exactly.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ecrl_cli.linux import processes
from ecrl_cli.linux.pdeathsig import with_pdeathsig
from ecrl_cli.supervision.launch.child_environment import child_environment, kernel_choices

WAIT = [sys.executable, "-c", "import signal; signal.pause()"]


def forked(act: str) -> int:
    pid = os.fork()
    if pid == 0:
        if act == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(137)
    return pid


@pytest.mark.parametrize(("act", "end"), [("kill", (None, 9)), ("exit", (137, None))])
def test_an_end_is_read_from_a_zombie_and_again_by_reaping(
    act: str, end: tuple[int | None, int | None]
) -> None:
    pid = forked(act)
    pidfd = processes.open_pidfd(pid)
    assert pidfd is not None
    assert processes.wait_all([pidfd], 10.0) == []
    seen, reaped = processes.peek(pid, pidfd), processes.reap(pid)
    later = processes.peek(pid, pidfd)
    os.close(pidfd)
    assert seen is not None and reaped is not None
    assert processes.split(seen) == processes.split(reaped) == end
    assert later in (seen, None), "an older kernel forgets, none may say otherwise"
    assert processes.reap(pid) is None
    assert processes.open_pidfd(pid) is None


def test_waiting_ends_when_the_time_is_up_and_names_who_lives() -> None:
    child = subprocess.Popen(WAIT)
    pidfd = os.pidfd_open(child.pid)
    assert processes.wait_all([pidfd], 0.0) == [pidfd]
    processes.kill(pidfd)
    assert processes.wait_all([pidfd], 10.0) == []
    processes.kill(pidfd)  # once more is no error
    assert child.wait() == -9
    os.close(pidfd)


def test_a_sweep_takes_the_runs_processes_and_nobody_elses(tmp_path: Path) -> None:
    mine, other = tmp_path / "run", tmp_path / "run2"
    (mine / "logs/attempt-00").mkdir(parents=True)
    with (mine / "logs/attempt-00/output.log").open("w") as log:
        by_tag = subprocess.Popen(WAIT, env=child_environment(mine, 1))
        by_output = subprocess.Popen(WAIT, stdout=log)
        stranger = subprocess.Popen(WAIT, env=child_environment(other, 1))
        spared = subprocess.Popen(WAIT, env=child_environment(mine, 1))
    found = processes.sweep(processes.of_run(mine), [spared.pid])
    assert sorted(found) == sorted([by_tag.pid, by_output.pid])
    assert stranger.poll() is None and spared.poll() is None
    for child in (stranger, spared):
        child.kill()
    for child in (by_tag, by_output, stranger, spared):
        child.wait()


def test_a_child_with_a_parent_death_signal_goes_with_its_parent() -> None:
    code = (
        "import subprocess, sys; from ecrl_cli.linux.pdeathsig import with_pdeathsig;child ="
        f" subprocess.Popen(with_pdeathsig({WAIT!r})); print(child.pid, flush=True); child.wait()"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pidfd = processes.open_pidfd(int(parent.stdout.readline()))
    assert pidfd is not None
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert processes.wait_all([pidfd], 10.0) == []
    os.close(pidfd)


def test_a_child_with_a_parent_death_signal_whose_parent_has_gone_before_does_not_start() -> None:
    command = with_pdeathsig([sys.executable, "-c", "print('started')"])
    command[4] = "1"  # as if process 1, which is not our parent, had started it
    result = subprocess.run(command, capture_output=True, check=False)
    assert (result.returncode, result.stdout) == (9, b"")


def test_no_secret_travels_to_a_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "s3cret")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
    monkeypatch.setenv("ONEDNN_VERBOSE", "0")
    made = child_environment(tmp_path, 2)
    assert "SECRET_TOKEN" not in made
    assert made["ONEDNN_MAX_CPU_ISA"] == kernel_choices()["ONEDNN_MAX_CPU_ISA"] == "SSE41"
    assert "ONEDNN_VERBOSE" in made and "ONEDNN_VERBOSE" not in kernel_choices(), (
        "it chooses nothing"
    )
    assert (made["OMP_NUM_THREADS"], made["NCCL_DEBUG"], made["ECRL_RUN"]) == (
        "2",
        "INFO",
        str(tmp_path),
    )
