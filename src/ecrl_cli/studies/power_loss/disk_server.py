"""A logging disk: one file over FUSE, backed by memory; every write and every flush is logged in
order.

A separate process (`python -m ... MOUNT_POINT DISK_FD LOG_FD PARENT`): a file system on this disk
waits for it, so it must never wait for that file system. The log is a memory file that others read
while it grows; a record is complete before its write is answered.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import struct
import sys
from dataclasses import dataclass
from typing import Any

from ecrl_cli.linux.pdeathsig import die_with_parent

NAME = "disk"
_HEADER = struct.Struct("=QQ")  # offset, bytes; a flush has no bytes


@dataclass(frozen=True)
class DiskWrite:
    """`data` at `offset`; without data a flush, which makes everything written before durable."""

    offset: int
    data: bytes

    @property
    def is_flush(self) -> bool:
        return not self.data

    @property
    def log_bytes(self) -> int:
        """Size of the record in the log."""
        return _HEADER.size + len(self.data)


class LoggedDisk:
    """The FUSE operations of a file system with one file."""

    use_ns = True

    def __init__(self, disk: int, log: int) -> None:
        self._size = os.fstat(disk).st_size
        self._memory = mmap.mmap(disk, self._size)
        self._log = log

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        if path == "/":
            return {"st_mode": stat.S_IFDIR | 0o700, "st_nlink": 2}
        if path == f"/{NAME}":
            return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": self._size}
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", NAME]

    def open(self, path: str, flags: int) -> int:
        return 0

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return self._memory[offset : offset + size]

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        os.write(self._log, _HEADER.pack(offset, len(data)) + data)
        self._memory[offset : offset + len(data)] = data
        return len(data)

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        os.write(self._log, _HEADER.pack(0, 0))
        return 0


def read_log(log: int, end: int) -> list[DiskWrite]:
    """The records in the first `end` bytes of the log."""
    data = os.pread(log, end, 0)
    found, at = [], 0
    while at < len(data):
        offset, nbytes = _HEADER.unpack_from(data, at)
        at += _HEADER.size
        found.append(DiskWrite(offset, data[at : at + nbytes]))
        at += nbytes
    return found


def main(argv: list[str]) -> None:
    mount_point, disk, log, parent = argv[0], int(argv[1]), int(argv[2]), int(argv[3])
    die_with_parent(parent)
    import mfusepy

    mfusepy.FUSE(LoggedDisk(disk, log), mount_point, foreground=True, nothreads=True)


if __name__ == "__main__":
    main(sys.argv[1:])
