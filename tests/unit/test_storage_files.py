"""Records written whole."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ecrl_cli.storage.files import create_once


def test_a_claim_that_could_not_be_written_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuses)
        with pytest.raises(OSError, match="No space"):
            create_once(tmp_path / "claim", b"mine")
    assert not (tmp_path / "claim").exists()
    assert create_once(tmp_path / "claim", b"mine")
