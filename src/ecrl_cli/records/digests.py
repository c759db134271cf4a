"""SHA-256 of a run's record files, of all records together, of checkpoints, and of ECRL's own code:
for the seal and for verdicts.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ecrl_cli.errors import EcrlError, RecordError
from ecrl_cli.records.layout import RunLayout, is_folder
from ecrl_cli.records.run_config import journal_bytes, read_run_config
from ecrl_cli.records.safe_read import MAX_DOCUMENT, MAX_JOURNAL

# at most so many bytes of a process's output are hashed; the size is recorded as well
PRINTED = 2**24
_CHUNK = 2**20
_COMPRESSED = 8  # a compressing file system may allocate so many times less than the file's size


@dataclass(frozen=True)
class FileDigest:
    bytes: int
    sha256: str


def record_files(layout: RunLayout) -> list[Path]:
    """Every record of the run, sorted: documents, fired faults, everything its attempts logged or
    printed. Symbolic links are included.

    Not included: files written about a run afterwards (verdict, divergence, seal, report),
    checkpoints, and hidden files, which nothing reads.
    """
    documents = (
        layout.config,
        layout.environment,
        layout.dataset,
        layout.failures,
        layout.supervisor,
        layout.metrics,
        layout.disk,
        layout.scrubs,
        layout.state_digests,
    )
    found = [
        path
        for path in (*documents, *sorted(layout.root.glob("seal-*.json")))
        if path.is_symlink() or path.exists()
    ]
    found += _below(layout.fired, 0) if is_folder(layout.fired) else []
    found += _below(layout.logs, 1) if is_folder(layout.logs) else []
    return sorted(found)


def sealed_files(layout: RunLayout) -> list[Path]:
    """`record_files`, and what Hydra composed for the run."""
    composed = (layout.composed, layout.overrides) if is_folder(layout.hydra) else ()
    return sorted([*record_files(layout), *(path for path in composed if path.exists())])


def composed_sha256(layout: RunLayout) -> str:
    """SHA-256 over what Hydra composed for the run, and what was typed for it; empty if it was
    made without Hydra.
    """
    if not is_folder(layout.hydra) or not layout.composed.exists():
        return ""
    total = hashlib.sha256()
    for path in (layout.composed, layout.overrides):
        total.update(f"{path.name}\0{_digest_or_reason(path, MAX_DOCUMENT)}\n".encode())
    return total.hexdigest()


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
    """Size and SHA-256 of a regular file, read in chunks; for process output (not JSON), SHA-256 of
    the first PRINTED bytes.

    RecordError, before anything is read, for a link, anything else that is not a regular file, and
    a record of more than `limit` bytes; OSError as from `open`.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if path.is_symlink():
            raise RecordError(
                path.name, "is a symbolic link", "put the file itself there"
            ) from error
        raise
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise RecordError(path.name, "is not a regular file", "restore the file")
        record = path.suffix in (".json", ".jsonl")
        if record and status.st_size > limit:
            raise RecordError(
                path.name,
                f"has {status.st_size} bytes, at most {limit} are read",
                "restore the file",
            )
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
    """SHA-256 over the names and contents of a file, or of all files in a folder (one level: a
    checkpoint). An unreadable file contributes the reason.
    """
    total = hashlib.sha256()
    for path in sorted(root.iterdir()) if is_folder(root) else [root]:
        total.update(f"{path.name}\0{_content(path)}\n".encode(errors="surrogateescape"))
    return total.hexdigest()


def _content(path: Path) -> str:
    """SHA-256 of a file of any size, or why it was not read. A mostly sparse file is not read:
    hashing it could take hours, and it is no checkpoint.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return f"not read: {error.strerror}"
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return "not read: no regular file"
        hole = status.st_size > _CHUNK and status.st_blocks * 512 < status.st_size // _COMPRESSED
        return (
            f"not read: {status.st_size} bytes with holes" if hole else _sha256(fd, status.st_size)
        )
    finally:
        os.close(fd)


def fingerprint(layout: RunLayout) -> str:
    """SHA-256 over the names and contents of all record files (`record_files`).

    A file that cannot be a record (a link, a pipe, larger than the run can have written)
    contributes the reason instead of its content.
    """
    total, limit = hashlib.sha256(), most_bytes(layout)
    for path in record_files(layout):
        total.update(
            f"{layout.relative(path)}\0{_digest_or_reason(path, limit)}\n".encode(
                errors="surrogateescape"
            )
        )
    return total.hexdigest()


def most_bytes(layout: RunLayout) -> int:
    """The size limit, in bytes, of a record file of this run."""
    try:
        return max(MAX_DOCUMENT, journal_bytes(read_run_config(layout).config))
    except (EcrlError, OSError):
        return MAX_DOCUMENT


def _digest_or_reason(path: Path, limit: int) -> str:
    try:
        return file_digest(path, limit).sha256
    except RecordError as error:
        return f"not read: {error.fact}"
    except OSError as error:
        return f"not read: {error.strerror}"


def file_states(layout: RunLayout) -> tuple[tuple[str, int, int, int], ...]:
    """Path, size, inode and time of every file of the run, but for what judging it writes: they
    stay the same where nothing was written since.

    Cheap, for one process that has read the run before; what is kept on file rests on digests of
    the content.
    """
    found = []
    for folder, _, names in os.walk(layout.root):
        for path in (Path(folder, name) for name in names):
            if path not in (layout.verdict, layout.divergence):
                with suppress(OSError):
                    state = path.lstat()
                    found.append(
                        (layout.relative(path), state.st_size, state.st_ino, state.st_mtime_ns)
                    )
    return tuple(sorted(found))


def checkpoint_states(layout: RunLayout) -> dict[str, dict[str, Any]]:
    """By path, for every checkpoint and pointer: a digest of its content, and sizes and times of
    its files, for a cheap comparison.
    """
    return {
        layout.relative(path): {"files": _stats(path), "sha256": tree_digest(path)}
        for path in _entries(layout)
    }


def changed_checkpoints(layout: RunLayout, states: dict[str, dict[str, Any]]) -> list[str]:
    """The paths added, removed or changed since `states` were taken.

    Content is read only where times differ (a copy has new ones) and sizes do not.
    """
    there = {layout.relative(path): path for path in _entries(layout)}
    changed = [name for name in states if name in there and _differs(there[name], states[name])]
    return sorted({*changed, *(set(there) ^ set(states))})


def _differs(path: Path, state: dict[str, Any]) -> bool:
    before, now = state.get("files"), _stats(path)
    if before == now:
        return False
    sizes = [file[:2] for file in before] if isinstance(before, list) else None
    return sizes != [file[:2] for file in now] or state.get("sha256") != tree_digest(path)


def _entries(layout: RunLayout) -> list[Path]:
    """Visible files and folders of checkpoints/: checkpoints and latest.json, without the symbolic
    link to the newest.
    """
    folder = layout.checkpoints
    return (
        sorted(p for p in folder.iterdir() if not p.name.startswith(".") and not p.is_symlink())
        if is_folder(folder)
        else []
    )


def _stats(path: Path) -> list[list[Any]]:
    files = sorted(path.iterdir()) if is_folder(path) else [path]
    return [
        [file.name, status.st_size, status.st_mtime_ns]
        for file in files
        for status in [file.lstat()]
    ]


@cache
def source_sha256() -> str:
    """SHA-256 over the names and contents of ECRL's source files: revisions that differ only in
    documents give the same digest, dirty trees that differ in code do not.
    """
    root = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(
            f"{path.relative_to(root)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode()
        )
    return digest.hexdigest()
