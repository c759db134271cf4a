"""The record files of a run directory and their SHA-256: what a seal is over and what a verdict was about."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ecrl_cli.errors import RecordError
from ecrl_cli.records.layout import RunLayout, is_folder
from ecrl_cli.records.safe_read import MAX_JOURNAL

PRINTED = 2**24  # of output of a process that are digested: its size tells of more
_CHUNK = 2**20
_COMPRESSED = 8  # a file system that compresses may need so much less


@dataclass(frozen=True)
class FileDigest:
    bytes: int
    sha256: str


def record_files(layout: RunLayout) -> list[Path]:
    """Every record of the run: documents, claims of failures, all that its attempts logged or printed. Sorted; links are among them.

    Not what is written about a run afterwards (verdict, divergence, seal, report), not the checkpoints, not hidden files, which nothing reads.
    """
    documents = (
        layout.config,
        layout.environment,
        layout.dataset,
        layout.failures,
        layout.supervisor,
        layout.metrics,
        layout.disk,
        layout.state_digests,
    )
    found = [path for path in documents if path.is_symlink() or path.exists()]
    found += _below(layout.fired, 0) if is_folder(layout.fired) else []
    found += _below(layout.logs, 1) if is_folder(layout.logs) else []
    return sorted(found)


def _below(folder: Path, depth: int) -> Iterator[Path]:
    """What lies in `folder` and, `depth` levels deep, in the folders in it."""
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        if depth and is_folder(path):
            yield from _below(path, depth - 1)
        else:
            yield path


def file_digest(path: Path, limit: int = MAX_JOURNAL) -> FileDigest:
    """Size and SHA-256 of a plain file, read in pieces; of what processes printed (no JSON), of the first PRINTED bytes.

    RecordError for a link, anything else that is no plain file, and a record of more than `limit` bytes, before any is read; OSError as `open`.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if path.is_symlink():
            raise RecordError(path.name, "is a symbolic link", "put the file itself there") from error
        raise
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise RecordError(path.name, "is not a regular file", "restore the file")
        record = path.suffix in (".json", ".jsonl")
        if record and status.st_size > limit:
            raise RecordError(path.name, f"has {status.st_size} bytes, at most {limit} are read", "restore the file")
        return FileDigest(status.st_size, _sha256(fd, limit if record else PRINTED))
    finally:
        os.close(fd)


def _sha256(fd: int, most: int) -> str:
    total = hashlib.sha256()
    while most > 0 and (piece := os.read(fd, min(_CHUNK, most))):
        total.update(piece)
        most -= len(piece)
    return total.hexdigest()


def tree_digest(root: Path) -> str:
    """SHA-256 over the names and contents of a file, or of all files in a folder (one level: a checkpoint). What cannot be read counts as that."""
    total = hashlib.sha256()
    for path in sorted(root.iterdir()) if is_folder(root) else [root]:
        total.update(f"{path.name}\0{_content(path)}\n".encode(errors="surrogateescape"))
    return total.hexdigest()


def _content(path: Path) -> str:
    """The SHA-256 of a file of any size that holds what it says: one that is nearly all hole would cost hours and is no checkpoint."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return f"not read: {error.strerror}"
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return "not read: no regular file"
        hole = status.st_size > _CHUNK and status.st_blocks * 512 < status.st_size // _COMPRESSED
        return f"not read: {status.st_size} bytes with holes" if hole else _sha256(fd, status.st_size)
    finally:
        os.close(fd)
