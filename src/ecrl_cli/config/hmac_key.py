"""Reads HMAC keys for checkpoints and run records: from files that only the owner can access; never
recorded, never printed.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ecrl_cli.errors import ConfigError, shown

MIN_KEY, MAX_KEY = 32, 4096


def read_key(name: str, key: str = "checkpoint.hmac_key_file") -> bytes:
    """The bytes of the file `name` (empty for no name). ConfigError unless it is a regular file of
    this user that only the owner can access.

    `key`: the configuration key that named the file, for the message.
    """
    if not name:
        return b""
    path = Path(name).expanduser()
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            key, f"{shown(name)} cannot be read ({reason})", "name a plain file of yours"
        ) from error
    try:
        _check(name, key, os.fstat(fd))
        return os.read(fd, MAX_KEY)
    finally:
        os.close(fd)


def _check(name: str, key: str, status: os.stat_result) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(
            key, f"{shown(name)} is not a regular file", "name one that holds the key"
        )
    if status.st_uid != os.geteuid():
        raise ConfigError(
            key,
            f"{shown(name)} belongs to uid {status.st_uid}, this is uid {os.geteuid()}",
            "use a key of your own",
        )
    if mode & 0o177:
        raise ConfigError(
            key, f"{shown(name)} has mode {mode:04o}, which lets others use the key", "chmod 600 it"
        )
    if not MIN_KEY <= status.st_size <= MAX_KEY:
        fact = f"{shown(name)} has {status.st_size} bytes, a key {MIN_KEY} to {MAX_KEY}"
        raise ConfigError(key, fact, f"make one: head -c {MIN_KEY} /dev/urandom > FILE")
