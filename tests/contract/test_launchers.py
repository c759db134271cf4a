"""What every launcher keeps: it says how each rank ended, notices a death at once, and leaves
nobody behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ecrl_cli.config.launchers import LAUNCHERS
from ecrl_cli.config.schema import RunConfig, SupervisionConfig
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.supervision.attempts.stop_signals import StopSignals
from ecrl_cli.supervision.launch.launcher import Launcher, RunningAttempt
from ecrl_cli.supervision.launch.torchrun import first_failure
from ecrl_cli.supervision.watch.attempt_monitor import AttemptMonitor, AttemptResult
from ecrl_cli.supervision.watch.control_server import ControlServer
from tests.contract.standin import (
    PYTHONPATH,
    REPOSITORY,
    StandinLauncher,
    gone,
    pids_of_ranks,
    scripted,
    spec,
    standin_launcher,
    told_when_gone,
)
from tests.contract.variants import check_description, check_registration, refused


@pytest.fixture(scope="module", params=LAUNCHERS.names())
def launcher(request: pytest.FixtureRequest) -> Iterator[StandinLauncher]:
    """One per kind for all tests: a launcher serves attempt after attempt, whatever became of the
    one before.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", PYTHONPATH)
        patch.setenv("ATEN_CPU_CAPABILITY", "default")
        made = standin_launcher(request.param)
        yield made
        made.close()


@pytest.mark.parametrize("name", LAUNCHERS.names())
def test_it_is_said_in_one_sentence_and_chosen_by_a_file(name: str) -> None:
    check_description(LAUNCHERS, name, "supervision", "launcher")


@pytest.mark.parametrize("name", LAUNCHERS.names())
def test_several_nodes_are_refused_in_one_line_by_what_cannot_serve_them(name: str) -> None:
    kind = LAUNCHERS.of(name)
    two = RunConfig(supervision=SupervisionConfig(launcher=name, nodes=2))
    assert ("2 nodes need supervision.launcher=" in refused(kind, two)) == (not kind.several_nodes)
    assert refused(kind, RunConfig(supervision=SupervisionConfig(launcher=name))) == ""
    assert kind.warm or not kind.in_place, (
        "spares are forked while others compute: an import would take their cores"
    )


def test_a_package_registers_nothing_else_under_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    check_registration(LAUNCHERS, monkeypatch)


def attempt(
    launcher: Launcher,
    layout: RunLayout,
    world_size: int = 2,
    during: Callable[[RunningAttempt], None] | None = None,
) -> AttemptResult:
    """One attempt to its end. `during` is called once, when every rank that waits for ever is known
    to wait.
    """
    listener = ControlServer(layout)
    try:
        with StopSignals() as stop:
            running = launcher.launch(spec(layout, world_size))
            watched = AttemptMonitor(running, 0, listener, stop)
            return watched.run(lambda progress: during(running) if during else None)
    finally:
        listener.close()


def hows(ended: AttemptResult) -> list[tuple[int | None, int | None]]:
    return [(rank.exit_code, rank.signal) for rank in ended.exits.ranks]


@dataclass(frozen=True)
class Ended:
    """An attempt that several tests look at. `warm`: whether the launcher's own process outlived
    it; `running`: what `during` was given.
    """

    result: AttemptResult
    output: str
    warm: bool
    running: RunningAttempt


def ended(
    launcher: StandinLauncher, folder: Path, world_size: int, script: dict[int, str]
) -> Ended:
    layout = scripted(folder, script)
    met: list[RunningAttempt] = []
    result = attempt(launcher, layout, world_size, during=met.append)
    warm = Path(f"/proc/{launchers_process(launcher.running)}").exists()
    assert met, "no progress was heard of"
    return Ended(result, layout.attempt(0).output.read_text(), warm, met[0])


@pytest.fixture(scope="module")
def ended_well(launcher: StandinLauncher, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return ended(launcher, tmp_path_factory.mktemp("well"), 3, {0: "kernels", 1: "0", 2: "0"})


@pytest.fixture(scope="module")
def killed(launcher: StandinLauncher, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return ended(launcher, tmp_path_factory.mktemp("killed"), 2, {1: "kill"})


def test_ranks_that_end_well_end_the_attempt_well(
    launcher: StandinLauncher, ended_well: Ended
) -> None:
    assert ended_well.result.succeeded
    assert hows(ended_well.result) == [(0, None)] * 3
    assert ended_well.warm == launcher.kind.warm, (
        "what is warm outlives an attempt, anything else is started for it"
    )
    assert all(f"rank {rank} of 3 prints" in ended_well.output for rank in range(3))


def test_ranks_compute_with_the_kernels_that_the_user_chose(ended_well: Ended) -> None:
    assert "computes with DEFAULT" in ended_well.output


def test_a_killed_rank_ends_the_attempt_and_is_named(killed: Ended) -> None:
    first = killed.result.exits.first
    assert first is not None
    assert (first.rank, first.exit_code, first.signal) == (1, None, 9)
    assert set(hows(killed.result)) == {(None, 9)}, (
        "a peer that was still starting is gone too, though nobody had met it"
    )
    assert not killed.result.succeeded


def test_the_id_of_a_dead_rank_is_given_to_nobody(killed: Ended) -> None:
    """It may be another process's by now, and what is planned by the clock strikes whom it is
    given.
    """
    assert 1 not in killed.running.pids()


def test_a_planned_exit_keeps_its_code(launcher: Launcher, tmp_path: Path) -> None:
    ended = attempt(launcher, scripted(tmp_path, {0: "137"}))
    assert ended.exits.first is not None
    assert (ended.exits.first.rank, ended.exits.first.exit_code, ended.exits.first.signal) == (
        0,
        137,
        None,
    )


def test_what_a_rank_says_before_it_ends_is_heard(launcher: Launcher, tmp_path: Path) -> None:
    ended = attempt(launcher, scripted(tmp_path, {1: "trouble"}))
    assert ended.rank_error is not None
    assert (ended.rank_error.rank, ended.rank_error.exit_code) == (1, 2)
    assert "dataset" in ended.rank_error.text


def test_a_rank_that_leaves_early_does_not_end_the_attempt_well(
    launcher: Launcher, tmp_path: Path
) -> None:
    ended = attempt(launcher, scripted(tmp_path, {0: "0", 1: "3"}))
    assert not ended.succeeded
    assert ended.exits.first is not None
    assert ended.exits.first.exit_code == 3


def test_no_rank_is_left_when_the_launchers_own_process_is_killed(
    launcher: StandinLauncher, tmp_path: Path
) -> None:
    pids: list[int] = []

    def kill_the_launcher(running: RunningAttempt) -> None:
        pids.extend(pids_of_ranks(RunLayout(tmp_path)))
        os.kill(launchers_process(running), signal.SIGKILL)

    ended = attempt(launcher, scripted(tmp_path, {}), during=kill_the_launcher)
    assert len(pids) == 2
    assert not ended.succeeded
    assert ended.exits.first is not None
    assert ended.exits.first.signal == 9
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    (tmp_path / "next").mkdir()
    assert attempt(launcher, scripted(tmp_path / "next", {0: "0", 1: "0"})).succeeded


def test_a_stop_signal_ends_everything(launcher: Launcher, tmp_path: Path) -> None:
    ended = attempt(
        launcher, scripted(tmp_path, {}), during=lambda running: os.kill(os.getpid(), signal.SIGINT)
    )
    assert ended.stopped_by == signal.SIGINT
    assert not any(Path(f"/proc/{rank.pid}").exists() for rank in ended.exits.ranks)


def ignored(pid: int) -> set[int]:
    """The signals that process `pid` ignores."""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = int(
        next(line for line in status.splitlines() if line.startswith("SigIgn")).split()[1], 16
    )
    return {number for number in range(1, 65) if mask >> number - 1 & 1}


def test_what_asks_a_process_to_end_is_for_the_supervisor_alone(
    launcher: StandinLauncher, tmp_path: Path
) -> None:
    """A scheduler sends it to every process of a job: neither ranks nor the launcher's own process
    may end of it.
    """
    deaf: list[bool] = []

    def look(running: RunningAttempt) -> None:
        everyone = [*pids_of_ranks(RunLayout(tmp_path)), launchers_process(running)]
        deaf.extend(
            {signal.SIGTERM, signal.SIGINT, signal.SIGHUP} <= ignored(pid) for pid in everyone
        )
        for pid in everyone:
            os.kill(pid, signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)

    ended = attempt(launcher, scripted(tmp_path, {}), during=look)
    assert deaf == [True] * 3
    assert ended.stopped_by == signal.SIGINT
    assert ended.exits.first is None, "it was the supervisor who ended them"


@pytest.mark.parametrize("kind", LAUNCHERS.names())
def test_nothing_survives_a_killed_supervisor(kind: str, tmp_path: Path) -> None:
    layout = scripted(tmp_path, {})
    supervisor = subprocess.Popen(
        [sys.executable, "-m", "tests.contract.lone_supervisor", kind, str(tmp_path)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert supervisor.stdout is not None
    pids = [int(word) for word in supervisor.stdout.readline().split()]
    assert len(pids) == 3
    with told_when_gone(*pids) as fds:
        supervisor.kill()
        supervisor.wait()
        supervisor.stdout.close()
        assert [gone(fd) for fd in fds] == [True] * 3
    assert layout.control.exists()  # nobody was left to tidy up; the next supervisor does


def test_an_attempt_may_be_ended_twice_and_hears_nobody_afterwards(
    launcher: Launcher, tmp_path: Path
) -> None:
    layout = scripted(tmp_path, {})
    listener = ControlServer(layout)
    with StopSignals() as stop:
        running = launcher.launch(spec(layout))
        ended = AttemptMonitor(running, 0, listener, stop).run(
            lambda progress: os.kill(os.getpid(), signal.SIGINT)
        )
    listener.close()
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(8)]  # the numbers of what was closed
    running.kill()
    running.introduce(5, os.getpid())
    assert (running.reap().ranks, 5 in running.pids()) == (ended.exits.ranks, False)
    for fd in taken:
        os.close(fd)


FAILING_FORK = """
import errno, os, socket
from ecrl_cli.supervision.launch import zygote_main
forks, real = [0], os.fork
def fork():
    forks[0] += 1
    if forks[0] == 3:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    return real()
os.fork = fork
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
request = {"world_size": 2, "prefix": "x", "module": "x", "run_dir": "/", "attempt": 0}
request["output"] = "/dev/null"
zygote_main.fork_ranks(request, zygote_main.ZygoteHandles(theirs, os.getpid(), 1))
"""


def test_a_zygote_that_cannot_fork_ends_and_does_not_wait_for_ever() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FAILING_FORK], capture_output=True, text=True, timeout=180
    )
    assert ended.returncode == 1
    assert "Resource temporarily unavailable" in ended.stderr


TABLE = """
worker.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-01-01_00:00:00
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 11)
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_00:00:00
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 12)
  error_file: <N/A>
============================================================
"""


def test_torchruns_table_is_read_where_it_knew_first() -> None:
    found = first_failure(TABLE)
    assert found is not None
    assert (found.rank, found.pid, found.exit_code, found.signal) == (1, 12, None, 9)
    assert first_failure("nothing of the kind") is None


def launchers_process(running: RunningAttempt | None) -> int:
    assert running is not None
    agent = getattr(running, "_agent", None)
    return int(agent.pid if agent else running.zygote.process.pid)  # type: ignore[attr-defined]
