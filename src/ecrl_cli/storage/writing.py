"""How the store writes new files: whole, durable as the write mode says, with direct I/O where that
helps.
"""

from __future__ import annotations

import errno
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ecrl_cli.errors import StorageError
from ecrl_cli.storage.fs import CREATE, Buffer, Fs

BLOCK = 4096  # direct I/O needs offsets, lengths and addresses that are multiples of this
# bytes per write call: between two calls the disk waits for this thread, which shares the
# interpreter with those that hash
CHUNK = 32 * 2**20
TEMPORARY = ".tmp_"  # prefix of the temporary file until the rename
DIRECT_FROM = 2**20  # smaller files are not worth direct I/O


@dataclass(frozen=True)
class WriteMode:
    """Three booleans: sync the files, install by rename, sync the directories. See
    docs/decisions/write-modes.md.
    """

    sync_files: bool = True
    atomic: bool = True
    sync_directories: bool = True


def write_new(fs: Fs, path: Path, data: Buffer, mode: WriteMode) -> None:
    """Creates `path` with `data`."""
    with half_written(fs, path, data, mode):
        pass


@contextmanager
def half_written(fs: Fs, path: Path, data: Buffer, mode: WriteMode) -> Iterator[None]:
    """Creates `path` with the first half of `data`; the rest is written on leaving the context.

    Direct I/O is used for synced files of DIRECT_FROM bytes or more; where the file system refuses
    it (EINVAL), the write is buffered. The last partial block always is: it ends the file without
    padding.
    """
    view = memoryview(data).cast("B")
    fd = fs.open(path, CREATE)
    try:
        middle = len(view) // 2 // BLOCK * BLOCK or len(view) // 2
        direct = mode.sync_files and len(view) >= DIRECT_FROM and fs.set_direct(fd, True)
        direct = _write_body(fs, fd, view[:middle], direct)
        yield
        _write_body(fs, fd, view[middle:], direct)
        if mode.sync_files:
            fs.fsync(fd)
    finally:
        fs.close(fd)


def _write_body(fs: Fs, fd: int, view: memoryview, direct: bool) -> bool:
    """Writes all of `view`; returns whether direct I/O is still on."""
    while len(view):
        if direct and len(view) < BLOCK:
            fs.set_direct(fd, False)
            direct = False
        size = min(len(view), CHUNK)
        piece = view[: size - size % BLOCK] if direct else view[:size]
        try:
            written = fs.write(fd, piece)
        except StorageError as error:
            if not (direct and error.errno == errno.EINVAL):
                raise
            fs.set_direct(fd, False)
            direct = False
            continue
        if written == 0:
            raise StorageError("write", "wrote nothing", "check the file system")
        if direct and written % BLOCK:
            fs.set_direct(fd, False)
            direct = False
        view = view[written:]
    return direct


def replace_small(fs: Fs, path: Path, data: bytes, mode: WriteMode) -> None:
    """Replaces `path` by `data` with a rename, whatever the mode: a reader sees the old bytes or
    the new.

    The name is durable only after the caller has synced the directory.
    """
    with ready_to_replace(fs, path, data, mode):
        pass


@contextmanager
def ready_to_replace(fs: Fs, path: Path, data: bytes, mode: WriteMode) -> Iterator[None]:
    """Like `replace_small`, in two steps: the new bytes are written under another name, and renamed
    on leaving the context.
    """
    temporary = path.with_name(f"{TEMPORARY}{path.name}.{secrets.token_hex(4)}")
    with _removed_on_failure(fs, temporary):
        write_new(fs, temporary, data, mode)
        yield
        fs.rename(temporary, path, replace=True)


@contextmanager
def ready_to_link(fs: Fs, path: Path, target: str) -> Iterator[None]:
    """Points the symbolic link `path` to `target` with a rename, on leaving the context."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}.{secrets.token_hex(4)}")
    with _removed_on_failure(fs, temporary):
        fs.symlink(target, temporary)
        yield
        fs.rename(temporary, path, replace=True)


@contextmanager
def _removed_on_failure(fs: Fs, temporary: Path) -> Iterator[None]:
    try:
        yield
    except StorageError:
        with suppress(StorageError):
            fs.unlink(temporary)
        raise
