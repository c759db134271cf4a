"""The supervisor's hand on the background writer: waits for what it received, fences it, replaces
it, leaves none behind.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.checkpoint.writer.server import Writer as CheckpointWriter
from ecrl_cli.linux import processes
from ecrl_cli.records.heartbeat_table import HeartbeatTable
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.supervision.attempts.stop_signals import StopSignals
from ecrl_cli.supervision.launch import writer_process as under_test
from ecrl_cli.supervision.launch.writer_process import WriterProcess
from tests.contract.standin import PYTHONPATH


@pytest.fixture
def stop() -> Iterator[StopSignals]:
    with StopSignals() as signals:
        yield signals


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WriterProcess]:
    monkeypatch.setattr(under_test, "WRITER", "tests.contract.standin_writer")
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    made = WriterProcess(RunLayout(tmp_path.resolve()))
    yield made
    made.close()


def test_a_writer_that_has_finished_stays_for_the_next_attempt(
    writer: WriterProcess, stop: StopSignals, tmp_path: Path
) -> None:
    writer.start()
    (first,) = writer.pids
    writer.drain(30.0, stop)
    assert (tmp_path / "asked").read_bytes() == b'{"kind":"drain"}\n'
    writer.start()
    assert writer.pids == (first,)


def test_a_writer_that_does_not_finish_in_time_is_fenced(
    writer: WriterProcess, stop: StopSignals, tmp_path: Path
) -> None:
    (tmp_path / "hang").touch()
    writer.start()
    (pid,) = writer.pids
    writer.drain(0.2, stop)
    assert writer.pids == ()
    assert not Path(f"/proc/{pid}").exists()


def test_another_stop_signal_ends_the_waiting(
    writer: WriterProcess, stop: StopSignals, tmp_path: Path
) -> None:
    (tmp_path / "hang").touch()
    os.kill(os.getpid(), signal.SIGINT)
    assert stop.received() == [signal.SIGINT]
    writer.start()
    previous = signal.signal(
        signal.SIGALRM, lambda number, frame: os.kill(os.getpid(), signal.SIGINT)
    )
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    writer.drain(3600.0, stop)
    signal.signal(signal.SIGALRM, previous)
    assert writer.pids == ()


def test_a_writer_that_dies_is_replaced_but_not_for_ever(writer: WriterProcess) -> None:
    writer.start()
    seen = set(writer.pids)
    assert not writer.check()
    for _ in range(under_test.REPLACED_AT_MOST):
        (watched,) = writer.watched()
        processes.kill(watched)
        processes.wait_all([watched], 10.0)
        assert writer.check()
        seen |= set(writer.pids)
    assert len(seen) == 1 + under_test.REPLACED_AT_MOST
    processes.kill(*writer.watched())
    processes.wait_all(writer.watched(), 10.0)
    assert writer.check()
    assert writer.watched() == ()
    writer.start()
    assert len(writer.pids) == 1


def test_a_dead_writer_is_not_waited_for(writer: WriterProcess, stop: StopSignals) -> None:
    writer.start()
    processes.kill(*writer.watched())
    writer.drain(3600.0, stop)
    assert writer.pids == ()


def test_closing_leaves_neither_process_nor_socket(writer: WriterProcess, tmp_path: Path) -> None:
    writer.start()
    (pid,) = writer.pids
    writer.close()
    assert not Path(f"/proc/{pid}").exists()
    assert not RunLayout(tmp_path).writer.exists()


def test_a_writer_that_does_not_die_is_not_waited_for_for_ever(
    writer: WriterProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that sits in the kernel: the store is fenced against it."""
    writer.start()
    process = writer._process
    assert process is not None
    with monkeypatch.context() as patch:
        patch.setattr(processes, "kill", lambda pidfd: None)
        patch.setattr(under_test, "GONE_WITHIN_S", 0.1)
        writer.kill()
    assert writer.pids == ()
    process.kill()
    process.wait()


def test_a_writer_shows_on_the_board_that_it_works_and_that_it_is_done(tmp_path: Path) -> None:
    over = threading.Event()
    with (
        closing(HeartbeatTable.create(2)) as board,
        closing(CheckpointStore(tmp_path / "checkpoints")) as store,
        socket.socket() as listener,
    ):
        served = CheckpointWriter(RunLayout(tmp_path), store, listener, board)
        seen = []
        for act in (
            lambda: store.claim(0),
            lambda: seen.append(board.read(board.writer)),
            over.set,
        ):
            served._jobs.put(act)
        store.fs.mkdir(tmp_path / "sign")
        before = board.read(board.writer)
        threading.Thread(target=served._work, daemon=True).start()
        assert over.wait(60)
    assert before.phase == "saving", "each call on a file is a sign of life"
    assert seen[0].phase == "done" and seen[0].beats > before.beats + 2
