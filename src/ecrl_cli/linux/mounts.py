"""libc's mount calls, and a private mount namespace: mounts made in it are invisible to other processes and vanish with its last process."""

from __future__ import annotations

import ctypes
import os

LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x20000, 0x4000, 1 << 18


def check(result: int, what: str) -> None:
    """Raise OSError naming `what` unless `result`, the return value of a LIBC call, is 0."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def private_mounts() -> None:
    """Move this process and its future children into a private mount namespace, which goes when the last of them ends.

    OSError where that is not permitted.
    """
    check(LIBC.unshare(_CLONE_NEWNS), "unshare")
    check(LIBC.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "/")
