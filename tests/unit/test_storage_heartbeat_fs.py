"""A sign of life around each call, and the call itself unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from ecrl_cli.errors import StorageError
from ecrl_cli.storage.fs import CREATE, PosixFs
from ecrl_cli.storage.fs_wrapper import HeartbeatFs


def test_every_call_beats_before_and_after_and_does_what_it_does(tmp_path: Path) -> None:
    beats: list[int] = []
    fs = HeartbeatFs(PosixFs(), lambda: beats.append(1))
    fd = fs.open(tmp_path / "a", CREATE)
    assert fs.write(fd, b"abc") == 3
    fs.fsync(fd)
    fs.close(fd)
    fs.rename(tmp_path / "a", tmp_path / "b", replace=True)
    assert (tmp_path / "b").read_bytes() == b"abc"
    assert len(beats) == 10
    with pytest.raises(StorageError):
        fs.unlink(tmp_path / "a")
    assert len(beats) == 11
