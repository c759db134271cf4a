"""Spares whose source fails them."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ecrl_cli.records.layout import RunLayout
from ecrl_cli.supervision.in_place import worker_pool as module
from ecrl_cli.supervision.in_place.worker_pool import SparePool
from ecrl_cli.supervision.launch.zygote import ZygoteProcess


def test_a_zygote_that_is_stopped_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.1)
    zygote, told = ZygoteProcess(()), list[str]()
    spec = SimpleNamespace(module="no.module", layout=RunLayout(tmp_path), preload=(), output=None)
    running: Any = SimpleNamespace(zygote=zygote, spec=spec)
    try:
        os.kill(zygote.process.pid, signal.SIGSTOP)
        spares = SparePool(1, told.append)
        spares.serve(running)
        spares.refill()
        spares.collect_pids()
        assert zygote.over() and spares.pids == ()
        assert [line for line in told if "has not answered" in line]
    finally:
        zygote.close()
