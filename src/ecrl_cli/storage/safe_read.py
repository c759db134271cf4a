"""Files that may have been prepared by an adversary: regular ones only, no symlinks, no more bytes
than the stated size; and links refused.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from ecrl_cli.errors import RunDirectoryError, shown
from ecrl_cli.storage.fs import FOLDER, READ, Fs

PIECE = 4 * 2**20  # bytes per read

MOST_DEEP = 8  # levels of folders; a run directory has three
# submitit keeps symlinks to its batch scripts there; ECRL writes nothing there
_OF_SUBMITIT = ".submitit"


class RefusedFile(Exception):
    """The file is not an acceptable one; the text says why."""


def open_regular(fs: Fs, folder: int, name: str, *, trust_owner: bool) -> tuple[int, int]:
    """Opens `name` in the open directory `folder`; returns (descriptor, size). RefusedFile unless
    it is an acceptable regular file:

    a single hard link, on the directory's device, owned by this user or root (unless
    `trust_owner`): nothing outside the directory is read.
    """
    fd = fs.open_at(folder, name, READ)
    try:
        found, home = fs.fstat(fd), fs.fstat(folder)
        if not stat.S_ISREG(found.st_mode):
            raise RefusedFile(f"{name} is not a regular file")
        if found.st_nlink != 1:
            raise RefusedFile(f"{name} has {found.st_nlink} names")
        if found.st_dev != home.st_dev:
            raise RefusedFile(f"{name} lies on another device")
        if not trust_owner and found.st_uid not in (os.geteuid(), 0):
            raise RefusedFile(f"{name} belongs to uid {found.st_uid}")
    except BaseException:
        fs.close(fd)
        raise
    return fd, found.st_size


def read_small(fs: Fs, fd: int, size: int, limit: int) -> bytes:
    """Reads the whole file, whose size by `fstat` is `size` bytes; RefusedFile if that exceeds
    `limit`.
    """
    if size > limit:
        raise RefusedFile(f"{size} bytes, at most {limit} are read")
    return b"".join(pieces(fs, fd, 0, size))


def read_small_in(
    fs: Fs, folder: Path, name: str, limit: int, *, trust_owner: bool = True
) -> bytes:
    """Reads the file `name` of `folder`; RefusedFile if `open_regular` refuses it or it exceeds
    `limit` bytes.
    """
    home = fs.open(folder, FOLDER)
    try:
        fd, size = open_regular(fs, home, name, trust_owner=trust_owner)
        try:
            return read_small(fs, fd, size, limit)
        finally:
            fs.close(fd)
    finally:
        fs.close(home)


def pieces(fs: Fs, fd: int, start: int, end: int) -> Iterator[memoryview]:
    """Yields bytes [start, end) in pieces, each valid until the next is requested; RefusedFile if
    the file is shorter.
    """
    buffer = memoryview(bytearray(min(PIECE, max(0, end - start))))
    while start < end:
        got = fill(fs, fd, buffer[: min(len(buffer), end - start)], start)
        yield got
        start += len(got)


def fill(fs: Fs, fd: int, buffer: memoryview, offset: int) -> memoryview:
    """Reads exactly len(buffer) bytes at `offset` into `buffer` and returns it; RefusedFile if the
    file ends before.
    """
    done = 0
    while done < len(buffer):
        got = fs.read_at(fd, buffer[done:], offset + done)
        if got == 0:
            raise RefusedFile(f"ends {len(buffer) - done} bytes early")
        done += got
    return buffer


def refuse_links(root: Path, names: Collection[str]) -> None:
    """RunDirectoryError where one of `names` in `root`, or anything below one, is a symbolic link.
    `root` itself may be a link.
    """
    for name in names:
        _refuse(root / name, root, MOST_DEEP)


def _refuse(path: Path, root: Path, deep: int) -> None:
    if path.is_symlink():
        where = shown(str(path.relative_to(root)))
        raise RunDirectoryError(
            str(root),
            f"{where} is a symbolic link: what is written there would lie elsewhere",
            "remove the link",
        )
    if deep and path.is_dir() and path.name != _OF_SUBMITIT:
        with os.scandir(path) as entries:
            below = [
                path / entry.name
                for entry in entries
                if entry.is_symlink() or entry.is_dir(follow_symlinks=False)
            ]
        for each in sorted(below):
            _refuse(each, root, deep - 1)
