"""Checkpoints as bytes in memory, so that the integrity check used on disk can run tens of thousands of times."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from ecrl_cli.checkpoint.store.integrity import IntegrityConfig, verify_checkpoint
from ecrl_cli.errors import StorageError
from ecrl_cli.storage.fs import PosixFs
from ecrl_cli.studies.corruption.invariants import Look, looked

Files = Mapping[str, bytes]  # by path below a checkpoint folder: "step_00000020/MANIFEST.json", "latest.json"
ROOT = Path("/checkpoints")


class ShelfFs(PosixFs):
    """Serves reads from `files` as if they lay under ROOT; read-only."""

    def __init__(self, files: Files) -> None:
        super().__init__()
        self._files = {f"{ROOT}/{name}": data for name, data in files.items()}
        self._folders: dict[str, set[str]] = {str(ROOT): set()}
        for name in files:
            above, _, last = name.rpartition("/")
            self._folders[str(ROOT)].add(name.partition("/")[0])
            if above:
                self._folders.setdefault(f"{ROOT}/{above}", set()).add(last)
        self._open: dict[int, str] = {}
        self._next = 1000

    def open(self, path: Path, flags: int) -> int:
        return self._opened_as(str(path), flags)

    def open_at(self, folder: int, name: str, flags: int) -> int:
        return self._opened_as(f"{self._open[folder]}/{name}", flags)

    def read_at(self, fd: int, buffer: memoryview, offset: int) -> int:
        piece = self._files[self._open[fd]][offset : offset + len(buffer)]
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self, fd: int) -> None:
        self._open.pop(fd)

    def listdir(self, path: Path) -> list[str]:
        if str(path) not in self._folders:
            raise _refused("list", str(path), errno.ENOENT)
        return sorted(self._folders[str(path)])

    def stat(self, path: Path) -> os.stat_result:
        return self._stat(str(path))

    def fstat(self, fd: int) -> os.stat_result:
        return self._stat(self._open[fd])

    def _opened_as(self, path: str, flags: int) -> int:
        if path not in self._files and path not in self._folders:
            raise _refused("open", path, errno.ENOENT)
        if flags & os.O_DIRECTORY and path not in self._folders:
            raise _refused("open", path, errno.ENOTDIR)
        self._next += 1
        self._open[self._next] = path
        return self._next

    def _stat(self, path: str) -> os.stat_result:
        if path not in self._files and path not in self._folders:
            raise _refused("stat", path, errno.ENOENT)
        kind = stat.S_IFDIR | 0o700 if path in self._folders else stat.S_IFREG | 0o600
        return os.stat_result((kind, 0, 1, 1, os.geteuid(), os.getegid(), len(self._files.get(path, b"")), 0, 0, 0))


def _refused(call: str, path: str, number: int) -> StorageError:
    return StorageError.of(call, path, OSError(number, os.strerror(number)))


def taken(root: Path) -> dict[str, bytes]:
    """The files under `root`, without links."""
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file() and not path.is_symlink()}


def look_at(files: Files, name: str, limits: IntegrityConfig) -> Look:
    """The integrity check's verdict on checkpoint `name` among `files`."""
    fs = ShelfFs(files)
    return looked(lambda: verify_checkpoint(ROOT / name, limits, fs))
