"""A network namespace of one's own, with nothing in it but a loopback device. Standard library only: this file also runs by itself.

`python -I -S network.py COMMAND...` becomes COMMAND in a new namespace, the loopback device up. A program of its own rather than a
`preexec_fn`, because that is not safe in a process with threads. Without the right to make one, it asks for a user namespace around it,
in which this user is root; exit code 71 where that is refused too.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
from pathlib import Path

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 0x1
_REQUEST = struct.Struct("16sH14x")  # struct ifreq: a name, then flags
REFUSED = 71


def set_loopback(*, up: bool) -> None:
    """Bring the loopback device of this process's network namespace up or down. PermissionError without CAP_NET_ADMIN there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        _, flags = _REQUEST.unpack(fcntl.ioctl(line, _GET_FLAGS, _REQUEST.pack(b"lo", 0)))
        fcntl.ioctl(line, _SET_FLAGS, _REQUEST.pack(b"lo", flags | _UP if up else flags & ~_UP))


def enter() -> None:
    """Move this process into a network namespace of its own. OSError where the kernel, or whoever runs it, does not allow that."""
    user, group = os.geteuid(), os.getegid()
    try:
        _unshare(CLONE_NEWNET)
    except PermissionError:
        _unshare(CLONE_NEWUSER | CLONE_NEWNET)
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            Path(f"/proc/self/{name}").write_text(text, encoding="utf-8")
    set_loopback(up=True)


def _unshare(flags: int) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    try:
        enter()
    except OSError as error:
        sys.stderr.write(f"{error.strerror}\n")
        sys.exit(REFUSED)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # the machine's own name means nothing here
    os.execv(sys.argv[1], sys.argv[1:])
