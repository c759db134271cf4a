"""Fencing: only the newest attempt that has claimed the store may commit; an older one that is
still running is fenced off.
"""

from __future__ import annotations

import errno
from pathlib import Path

from ecrl_cli.checkpoint.format.canonical_json import canonical_json, parse
from ecrl_cli.checkpoint.format.names import LEASE
from ecrl_cli.errors import Fenced, StorageError
from ecrl_cli.storage.fs import FOLDER, Fs
from ecrl_cli.storage.safe_read import RefusedFile, open_regular, read_small
from ecrl_cli.storage.writing import WriteMode, replace_small

_LIMIT = 1024


class FencingToken:
    """The number of the owning attempt, in a file beside the checkpoints."""

    def __init__(self, fs: Fs, root: Path) -> None:
        self._fs, self._root = fs, root

    def claim(self, attempt: int) -> None:
        """Let `attempt` commit and older ones no longer; Fenced if a newer one has already claimed
        the store.

        Durable in every write mode: losing the token would let older attempts commit again.
        """
        if self.check(attempt) == attempt:
            return
        replace_small(
            self._fs, self._root / LEASE, canonical_json({"attempt": attempt}), WriteMode()
        )
        self._fs.fsyncdir(self._root)

    def check(self, attempt: int) -> int:
        """The recorded attempt number (-1: none); Fenced if it is higher than `attempt`."""
        try:
            holder = self._read()
        except StorageError:
            holder = self._read()  # it may have been replaced between opening and reading
        if holder < 0:
            holder = self._read()  # a network file system may show a new name late
        if holder > attempt:
            raise Fenced(
                "checkpoints",
                f"attempt {holder} owns the store, this is attempt {attempt}",
                "nothing was committed; stop this process",
            )
        return holder

    def _read(self) -> int:
        folder = self._fs.open(self._root, FOLDER)
        try:
            fd, size = open_regular(self._fs, folder, LEASE, trust_owner=True)
            try:
                value = parse(read_small(self._fs, fd, size, _LIMIT))
            finally:
                self._fs.close(fd)
            if not isinstance(value, dict) or type(value.get("attempt")) is not int:
                raise ValueError("no attempt number")
            return int(value["attempt"])
        except StorageError as error:
            if error.errno == errno.ENOENT:
                return -1
            raise
        except (RefusedFile, ValueError) as error:
            fact = f"{self._root / LEASE} is damaged ({error})"
            raise StorageError(
                "lease", fact, "remove it if no other process trains in this folder"
            ) from error
        finally:
            self._fs.close(folder)
