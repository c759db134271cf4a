"""What a rank's end tells the supervisor."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import RankError
from ecrl_cli.supervision.watch.control_server import ControlServer
from ecrl_cli.training import worker
from ecrl_cli.training.rendezvous import Rendezvous


def end_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> tuple[int, RankError]:
    """The exit code (1 where it raises) and the last words of a rank that meets `error`."""

    def meets(*given: object) -> None:
        raise error

    monkeypatch.setattr(worker, "_train", meets)
    listener = ControlServer(RunLayout(tmp_path))
    try:
        code = worker.run_rank(tmp_path, 0, Rendezvous(1, 2), 0.0)
    except OSError:
        code = 1
    connection = listener.accept()
    assert connection is not None
    messages, _ = connection.receive()
    connection.socket.close()
    listener.close()
    assert isinstance(messages[-1], RankError)
    return code, messages[-1]


def test_a_file_system_that_refuses_is_a_storage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, trouble = end_of(
        tmp_path, monkeypatch, OSError(errno.ENOSPC, "No space left on device", "rank1.jsonl")
    )
    assert (code, trouble.exit_code) == (5, 5)
    assert "ENOSPC at rank1.jsonl" in trouble.text


def test_a_lost_peer_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, trouble = end_of(
        tmp_path, monkeypatch, ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
    )
    assert (code, trouble.exit_code) == (1, 1)
