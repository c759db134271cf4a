"""The descriptors of this process."""

from __future__ import annotations

import os
from pathlib import Path


def open_files(named: str = "") -> set[tuple[int, int, int]]:
    """(descriptor, device, inode) of what is open and has `named` in its name.

    Descriptors come and go meanwhile: that of the listing itself, those of other threads, and those
    of objects that the garbage collector finds. So hold two of these against each other as sets,
    and never their sizes.
    """
    found = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            target, status = str(Path("/proc/self/fd", name).readlink()), os.fstat(int(name))
        except OSError:
            continue
        if named in target:
            found.add((int(name), status.st_dev, status.st_ino))
    return found
