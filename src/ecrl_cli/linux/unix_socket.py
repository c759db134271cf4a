"""Unix sockets at paths of any length: the kernel takes 107 bytes, a run directory may be
longer.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def short_address(path: Path) -> Iterator[str]:
    """An address for `path` through /proc/self/fd, valid inside the block."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def bind(path: Path) -> socket.socket:
    """A stream socket bound to `path`, where nothing may be."""
    return _opened(path, socket.socket.bind)


def listen(path: Path, backlog: int = 8) -> socket.socket:
    """A listening socket at `path`; replaces an old socket file."""
    path.unlink(missing_ok=True)
    bound = bind(path)
    bound.listen(backlog)
    return bound


def connect(path: Path) -> socket.socket:
    """A socket connected to `path`; OSError if no process listens."""
    return _opened(path, socket.socket.connect)


def _opened(path: Path, begin: Callable[[socket.socket, str], None]) -> socket.socket:
    """A stream socket that `begin` was called on with the address of `path`; closed where that
    fails.
    """
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short_address(path) as address:
            begin(opened, address)
    except OSError:
        opened.close()
        raise
    return opened
