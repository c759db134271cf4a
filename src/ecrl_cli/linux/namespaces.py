"""Private namespaces: of the network, with nothing but a loopback device, and of mounts. Standard
library only: this file also runs as a script.

`python -I -S namespaces.py COMMAND...` executes COMMAND in a new network namespace with the
loopback device up. It is a script rather than a `preexec_fn` because the latter is unsafe in a
process with threads. Without the privilege to create a network namespace it first creates a user
namespace in which this user is root. Exit code 71 where that is refused too.
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
_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x20000, 0x4000, 1 << 18
LIBC = ctypes.CDLL(None, use_errno=True)


def private_command(command: list[str]) -> list[str]:
    """`command`, run in a new network namespace."""
    return [sys.executable, "-I", "-S", __file__, *command]


def set_loopback(*, up: bool) -> None:
    """Bring the loopback device of this process's network namespace up or down. PermissionError
    without CAP_NET_ADMIN in it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        _, flags = _REQUEST.unpack(fcntl.ioctl(line, _GET_FLAGS, _REQUEST.pack(b"lo", 0)))
        fcntl.ioctl(line, _SET_FLAGS, _REQUEST.pack(b"lo", flags | _UP if up else flags & ~_UP))


def enter() -> None:
    """Move this process into a new network namespace, loopback up. OSError where the kernel or a
    sandbox does not allow it.
    """
    user, group = os.geteuid(), os.getegid()
    try:
        check(LIBC.unshare(CLONE_NEWNET), "unshare")
    except PermissionError:
        check(LIBC.unshare(CLONE_NEWUSER | CLONE_NEWNET), "unshare")
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"0 {user} 1"),
            ("gid_map", f"0 {group} 1"),
        ):
            Path(f"/proc/self/{name}").write_text(text, encoding="utf-8")
    set_loopback(up=True)


def check(result: int, what: str) -> None:
    """Raise OSError naming `what` unless `result`, the return value of a LIBC call, is 0."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def private_mounts() -> None:
    """Move this process and its future children into a private mount namespace, which goes when the
    last of them ends.

    OSError where that is not permitted.
    """
    check(LIBC.unshare(_CLONE_NEWNS), "unshare")
    check(LIBC.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "/")


if __name__ == "__main__":
    try:
        enter()
    except OSError as error:
        sys.stderr.write(f"{error.strerror}\n")
        sys.exit(REFUSED)
    # the hostname does not resolve to an address of this namespace
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.execv(sys.argv[1], sys.argv[1:])
