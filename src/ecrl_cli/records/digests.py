"""The record files of a run directory and their SHA-256, for the seal and for verdicts."""

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

PRINTED = 2**24  # at most so many bytes of a process's output are hashed; the size is recorded as well
_CHUNK = 2**20
_COMPRESSED = 8  # a compressing file system may allocate so many times less than the file's size


@dataclass(frozen=True)
class FileDigest:
    bytes: int
    sha256: str


def record_files(layout: RunLayout) -> list[Path]:
    """Every record of the run, sorted: documents, fired faults, everything its attempts logged or printed. Symbolic links are included.

    Not included: files written about a run afterwards (verdict, divergence, seal, report), checkpoints, and hidden files, which nothing reads.
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
    """The visible entries of `folder` and of its subfolders, `depth` levels deep."""
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        if depth and is_folder(path):
            yield from _below(path, depth - 1)
        else:
            yield path


def file_digest(path: Path, limit: int = MAX_JOURNAL) -> FileDigest:
    """Size and SHA-256 of a regular file, read in chunks; for process output (not JSON), SHA-256 of the first PRINTED bytes.

    RecordError, before anything is read, for a link, anything else that is not a regular file, and a record of more than `limit` bytes; OSError
    as from `open`.
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
    """SHA-256 over the names and contents of a file, or of all files in a folder (one level: a checkpoint). An unreadable file contributes the
    reason."""
    total = hashlib.sha256()
    for path in sorted(root.iterdir()) if is_folder(root) else [root]:
        total.update(f"{path.name}\0{_content(path)}\n".encode(errors="surrogateescape"))
    return total.hexdigest()


def _content(path: Path) -> str:
    """SHA-256 of a file of any size, or why it was not read. A mostly sparse file is not read: hashing it could take hours, and it is no
    checkpoint."""
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
