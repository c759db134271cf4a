"""Digests of a run's records and checkpoints, by which a change after a verdict is detected."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from ecrl_cli.errors import EcrlError, RecordError
from ecrl_cli.records.digests import file_digest, record_files, tree_digest
from ecrl_cli.records.layout import RunLayout, is_folder
from ecrl_cli.records.run_config import journal_bytes, read_run_config
from ecrl_cli.records.safe_read import MAX_DOCUMENT


def fingerprint(layout: RunLayout) -> str:
    """SHA-256 over the names and contents of all record files (`record_files`).

    A file that cannot be a record (a link, a pipe, larger than the run can have written) contributes the reason instead of its content.
    """
    total, limit = hashlib.sha256(), most_bytes(layout)
    for path in record_files(layout):
        total.update(f"{layout.relative(path)}\0{_digest(path, limit)}\n".encode(errors="surrogateescape"))
    return total.hexdigest()


def most_bytes(layout: RunLayout) -> int:
    """The size limit, in bytes, of a record file of this run."""
    try:
        return max(MAX_DOCUMENT, journal_bytes(read_run_config(layout).config))
    except (EcrlError, OSError):
        return MAX_DOCUMENT


def _digest(path: Path, limit: int) -> str:
    try:
        return file_digest(path, limit).sha256
    except RecordError as error:
        return f"not read: {error.fact}"
    except OSError as error:
        return f"not read: {error.strerror}"


def checkpoint_states(layout: RunLayout) -> dict[str, dict[str, Any]]:
    """By path, for every checkpoint and pointer: a digest of its content, and sizes and times of its files, for a cheap comparison."""
    return {layout.relative(path): {"files": _stats(path), "sha256": tree_digest(path)} for path in _entries(layout)}


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
    """Visible files and folders of checkpoints/: checkpoints and latest.json, without the symbolic link to the newest."""
    folder = layout.checkpoints
    return sorted(p for p in folder.iterdir() if not p.name.startswith(".") and not p.is_symlink()) if is_folder(folder) else []


def _stats(path: Path) -> list[list[Any]]:
    files = sorted(path.iterdir()) if is_folder(path) else [path]
    return [[file.name, status.st_size, status.st_mtime_ns] for file in files for status in [file.lstat()]]
