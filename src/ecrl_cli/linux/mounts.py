"""The kernel's mount calls, and a mount namespace of a process's own: what it mounts there nobody else sees, and nothing of it outlives it."""

from __future__ import annotations

import ctypes
import os

LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x20000, 0x4000, 1 << 18


def check(result: int, what: str) -> None:
    """OSError about `what` where a call of LIBC did not give 0."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def private_mounts() -> None:
    """From now on this process and its children mount for themselves only; the last of them to end takes the mounts along.

    Raises OSError where that is not allowed.
    """
    check(LIBC.unshare(_CLONE_NEWNS), "unshare")
    check(LIBC.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "/")
