"""Shared memory for snapshots: anonymous (memfd), allocated and touched once, passed between processes by descriptor. Torch-free."""

from __future__ import annotations

import mmap
import os
from contextlib import suppress

from ecrl_cli.errors import StorageError


class Memory:
    """`nbytes` of page-aligned shared memory; `view` is all of it."""

    def __init__(self, fd: int, nbytes: int) -> None:
        self.fd, self.nbytes = fd, nbytes
        # populate: the page tables now, not at the first copy
        self._map = mmap.mmap(fd, nbytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self.view = memoryview(self._map)

    @classmethod
    def create(cls, nbytes: int) -> Memory:
        """New memory with every page allocated: first touching a page costs seven times a copy into it. StorageError if there is not enough."""
        fd = os.memfd_create("ecrl-slot", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(fd, 0, nbytes)
            return cls(fd, nbytes)
        except OSError as error:
            os.close(fd)
            raise StorageError.of("allocate", f"a snapshot slot of {nbytes} bytes", error) from error

    def close(self) -> None:
        """Unmap, unless tensors still refer to it; the memory is freed with its last user."""
        os.close(self.fd)
        with suppress(BufferError):
            self.view.release()
            self._map.close()
