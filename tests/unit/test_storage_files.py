"""Records written whole."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest

from ecrl_cli.storage import files
from ecrl_cli.storage.files import create_once


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()],
    ids=["disk full", "Ctrl-C"],
)
def test_a_claim_that_could_not_be_written_is_none_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def refuses(fd: int) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuses)
        with pytest.raises(type(error)) as raised:
            create_once(tmp_path / "claim", b"mine")
    assert raised.value is error
    assert not list(tmp_path.iterdir())
    assert create_once(tmp_path / "claim", b"mine")


def test_whoever_is_killed_before_the_claim_is_whole_has_claimed_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(files, "_write_all", lambda fd, data: os.kill(os.getpid(), signal.SIGKILL))
        if not (child := os.fork()):
            create_once(tmp_path / "claim", b"mine")
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert not (tmp_path / "claim").exists()
    assert create_once(tmp_path / "claim", b"mine") and not create_once(
        tmp_path / "claim", b"yours"
    )
    assert (tmp_path / "claim").read_bytes() == b"mine"
