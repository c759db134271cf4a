"""A planned failure strikes its victim, at its step, as its kind says, and never twice."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from ecrl_cli.failures.fault_log import fired_indices, read_fired
from ecrl_cli.failures.injector import Injector
from ecrl_cli.failures.rank_faults import Kill
from ecrl_cli.linux import processes
from ecrl_cli.records.events import PlannedFailure
from ecrl_cli.records.layout import RunLayout
from tests.conftest import comes_true

KILL, EXIT = PlannedFailure(0, "kill", 1, 7), PlannedFailure(1, "exit", 0, 9)


def forked(body: Callable[[], None]) -> int:
    """The wait status of a child that runs `body` and then ends with code 0."""
    pid = os.fork()
    if pid == 0:
        try:
            body()
            os._exit(0)
        finally:
            os._exit(99)
    return os.waitpid(pid, 0)[1]


def strike(
    layout: RunLayout,
    rank: int,
    step: int,
    attempt: int = 0,
    flush: Callable[[], None] = lambda: None,
) -> int:
    injector = Injector(layout, attempt, rank, (KILL, EXIT))
    return forked(lambda: injector.at_boundary(step, flush))


def test_kill_is_a_sigkill_of_its_rank_at_its_step_only(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    assert strike(layout, rank=1, step=6) == 0
    assert strike(layout, rank=0, step=7) == 0
    assert fired_indices(layout) == frozenset()
    status = strike(layout, rank=1, step=7)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == 9


def test_exit_is_code_137_of_rank_0(tmp_path: Path) -> None:
    assert os.waitstatus_to_exitcode(strike(RunLayout(tmp_path), rank=0, step=9)) == 137


def test_a_stopped_rank_that_is_woken_goes_no_further(tmp_path: Path) -> None:
    """Whoever asks it for its stacks has to wake it up."""
    injector = Injector(RunLayout(tmp_path), 0, 0, (PlannedFailure(0, "stop", 0, 7),))
    pid = os.fork()
    if pid == 0:
        try:
            injector.at_boundary(7, lambda: None)
        finally:
            os._exit(99)
    assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
    os.kill(pid, signal.SIGCONT)
    assert comes_true(lambda: processes.state(pid) in ("S", "Z"))
    state = processes.state(pid)
    os.kill(pid, signal.SIGKILL)
    assert (state, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])) == ("S", -signal.SIGKILL)


def test_a_claimed_entry_does_not_strike_again(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    assert strike(layout, rank=1, step=7) != 0
    assert strike(layout, rank=1, step=7, attempt=1) == 0
    assert fired_indices(layout) == {0}


def test_of_two_processes_that_strike_at_once_one_dies(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    go_read, go_write = os.pipe()
    children = []
    for _ in range(2):
        pid = os.fork()
        if pid == 0:
            os.close(go_write)
            os.read(go_read, 1)  # both wake at the end of file
            Injector(layout, 0, 1, (KILL,)).at_boundary(7, lambda: None)
            os._exit(0)
        children.append(pid)
    os.close(go_write)
    os.close(go_read)
    assert sorted(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children) == [-9, 0]


def test_the_claim_says_what_struck_and_is_there_before_the_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = RunLayout(tmp_path)
    claims = []
    monkeypatch.setattr(Kill, "inject", lambda kind, context: claims.append(read_fired(layout)))
    Injector(layout, 3, 1, (KILL,)).at_boundary(7, lambda: None)
    ((fired,),) = claims
    assert (fired.index, fired.kind, fired.rank, fired.global_step, fired.attempt) == (
        0,
        "kill",
        1,
        7,
        3,
    )


def test_exit_flushes_on_every_rank_and_kill_on_none(tmp_path: Path) -> None:
    layout, flushed = RunLayout(tmp_path), []
    Injector(layout, 0, 2, (KILL, EXIT)).at_boundary(7, lambda: flushed.append(7))
    Injector(layout, 0, 2, (KILL, EXIT)).at_boundary(9, lambda: flushed.append(9))
    assert flushed == [9]


def test_a_flush_that_fails_leaves_the_entry_for_the_next_attempt(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)

    def flush() -> None:
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        Injector(layout, 0, 0, (EXIT,)).at_boundary(9, flush)
    assert fired_indices(layout) == frozenset()


def test_a_claim_cut_off_by_its_own_fault_still_counts(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    layout.fired.mkdir()
    layout.fired_entry(4).write_bytes(b'{"index": 4, "ki')
    assert fired_indices(layout) == {4}
    assert read_fired(layout) == ()


def test_the_folder_of_claims_is_durable_before_the_first_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("ecrl_cli.failures.fault_log.sync_directory", synced.append)
    layout = RunLayout(tmp_path)
    layout.fired.mkdir()  # made by a process that died at once
    monkeypatch.setattr(Kill, "inject", lambda kind, context: synced.append(layout.fired_entry(0)))
    Injector(layout, 0, 1, (KILL,)).at_boundary(7, lambda: None)
    assert synced == [tmp_path, layout.fired_entry(0)]
