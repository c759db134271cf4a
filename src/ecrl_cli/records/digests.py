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

_CHUNK = 2**20


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


def file_digest(path: Path) -> FileDigest:
    """Size and SHA-256 of a plain file, read in pieces. RecordError for a link or anything else that is no plain file; OSError as `open`."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if path.is_symlink():
            raise RecordError(path.name, "is a symbolic link", "put the file itself there") from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise RecordError(path.name, "is not a regular file", "restore the file")
        total, size = hashlib.sha256(), 0
        while piece := os.read(fd, _CHUNK):
            total.update(piece)
            size += len(piece)
        return FileDigest(size, total.hexdigest())
    finally:
        os.close(fd)


def tree_digest(root: Path) -> str:
    """SHA-256 over the names and contents of a file, or of all files in a folder (one level: a checkpoint). RecordError, OSError likewise."""
    total = hashlib.sha256()
    for path in sorted(root.iterdir()) if is_folder(root) else [root]:
        total.update(f"{path.name}\0{file_digest(path).sha256}\n".encode())
    return total.hexdigest()
