"""The real file system at a limited write bandwidth: simulates slow or shared storage on any machine."""

from __future__ import annotations

import threading
import time

from ecrl_cli.storage.fs import Buffer, PosixFs
from ecrl_cli.storage.fs_wrapper import FsWrapper

PIECE = 2**20  # bytes per write call: small enough for an even rate


class ThrottledFs(FsWrapper):
    """Writes at most `bytes_per_s`, over all files and threads; reads, syncs and name operations are not throttled."""

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
