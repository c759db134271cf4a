"""A back end that sends a heartbeat around each call, so that the watchdog can tell a slow disk from a stuck writer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ecrl_cli.storage.fs import Fs
from ecrl_cli.storage.fs_wrapper import FsWrapper

T = TypeVar("T")


class HeartbeatFs(FsWrapper):
    """Calls `beat` before and after each call (a write, a sync, ...)."""

    def __init__(self, behind: Fs, beat: Callable[[], None]) -> None:
        super().__init__(behind)
        self._beat = beat

    def around(self, call: str, path: Path, act: Callable[[], T]) -> T:
        self._beat()
        result = act()
        self._beat()
        return result
