"""The real file system at a given bandwidth: what a slow or shared storage does to checkpoints, on any machine."""

from __future__ import annotations

import threading
import time

from ecrl_cli.storage.fs import Buffer, PosixFs
from ecrl_cli.storage.fs_wrapper import FsWrapper

PIECE = 2**20  # bytes per write call: short enough that the pace is even


class ThrottledFs(FsWrapper):
    """At most `bytes_per_s` are written, over all files and threads; reads, syncs and names are as fast as they are."""

    def __init__(self, bytes_per_s: float) -> None:
        super().__init__(PosixFs())
        self._rate, self._free_at, self._lock = bytes_per_s, 0.0, threading.Lock()

    def write(self, fd: int, data: Buffer) -> int:
        written = super().write(fd, memoryview(data).cast("B")[:PIECE])
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic()) + written / self._rate
            free_at = self._free_at
        time.sleep(max(0.0, free_at - time.monotonic()))
        return written
