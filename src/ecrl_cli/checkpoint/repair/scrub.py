"""Scrubbing: checks the checkpoints in a folder, newest first, for whether each could still be
loaded. Changes nothing.
"""

from __future__ import annotations

import errno
import re
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from ecrl_cli.checkpoint.format.canonical_json import parse
from ecrl_cli.checkpoint.format.hashing import workers
from ecrl_cli.checkpoint.format.names import (
    LATEST,
    LATEST_OK,
    LEASE,
    REJECTED_PREFIX,
    STAGE_PREFIX,
    STEP_NAME,
    TRASH_PREFIX,
)
from ecrl_cli.checkpoint.repair.diagnose import Diagnosis, diagnose
from ecrl_cli.checkpoint.store import catalog
from ecrl_cli.checkpoint.store.catalog import CheckpointEntry, entry_of
from ecrl_cli.checkpoint.store.integrity import IntegrityConfig, IntegrityReport, verify_checkpoint
from ecrl_cli.errors import StorageError
from ecrl_cli.storage.fs import Fs, PosixFs
from ecrl_cli.storage.safe_read import RefusedFile, read_small_in

_MAX_POINTER = 4096
_SIDECAR = re.compile(r"^step_[0-9]{8}\.json\Z")
_ASIDE = (REJECTED_PREFIX, STAGE_PREFIX, TRASH_PREFIX)
_OURS = (LATEST, LATEST_OK, LEASE)


@dataclass(frozen=True)
class ScrubConfig:
    """`sample`: how many are checked as long as all of them are valid (0: all). `deep`: hash the
    tensors of `.pt` files and of format version 1 too. By default any owner is trusted.
    """

    sample: int = 0
    deep: bool = False
    integrity: IntegrityConfig = field(default_factory=lambda: IntegrityConfig(trust_owner=True))


@dataclass(frozen=True)
class ScrubResult:
    """One checkpoint: the integrity report and, if it was rejected, the diagnosis."""

    report: IntegrityReport
    diagnosis: Diagnosis | None

    @property
    def ok(self) -> bool:
        return self.report.ok


@dataclass(frozen=True)
class Scrub:
    """The result of a scrub. `looked`: newest first; `total`: how many there are; `spread`: a
    rejected one in the sample led to checking all.
    `pointers`: what is wrong with latest.json and latest_ok; `aside`: rejected, staged and trashed
    names, which do not count.
    """

    folder: Path
    looked: tuple[ScrubResult, ...]
    total: int
    spread: bool
    pointers: tuple[str, ...]
    aside: tuple[str, ...]

    @property
    def valid(self) -> int:
        return sum(one.ok for one in self.looked)


def holds_checkpoints(folder: Path) -> bool:
    """Whether anything in `folder` has a name of the checkpoint protocol."""
    return any(
        STEP_NAME.match(path.name)
        or _SIDECAR.match(path.name)
        or path.name in _OURS
        or path.name.startswith(_ASIDE)
        for path in folder.iterdir()
    )


def scrub(
    folder: Path,
    names: Sequence[str] | None = None,
    config: ScrubConfig | None = None,
    fs: Fs | None = None,
) -> Scrub:
    """Check the checkpoints in `folder`: all and the pointers, or only those named in `names`. A
    writer may be at work meanwhile. StorageError if the folder cannot be listed, or if this process
    lacks descriptors or memory.
    """
    config, fs = config or ScrubConfig(), fs or PosixFs()
    entries = [entry for entry in _entries(fs, folder) if names is None or entry.path.name in names]
    sample = sampled(entries, config.sample)
    looked = _look(sample, config, fs)
    spread = len(sample) < len(entries) and not all(one.ok for one in looked.values())
    if spread:
        looked |= _look([entry for entry in entries if entry not in looked], config, fs)
    total = len(looked) if spread else len(entries) - len(sample) + len(looked)
    if names is not None:
        return Scrub(folder, _in_order(entries, looked), total, spread, (), ())
    refused = {entry.path.name for entry, one in looked.items() if not one.ok}
    aside = tuple(name for name in fs.listdir(folder) if name.startswith(_ASIDE))
    return Scrub(
        folder, _in_order(entries, looked), total, spread, _pointers(fs, folder, refused), aside
    )


def _entries(fs: Fs, folder: Path) -> list[CheckpointEntry]:
    """Like `catalog.entries`, plus single files of which only the sidecar is left."""
    found = catalog.entries(fs, folder)
    stems = {entry.path.stem for entry in found}
    lost = [
        name for name in fs.listdir(folder) if _SIDECAR.match(name) and Path(name).stem not in stems
    ]
    found += [entry_of(folder / f"{Path(name).stem}.safetensors") for name in lost]
    return sorted(found, key=lambda entry: (entry.global_step, entry.path.name), reverse=True)


def sampled(entries: list[CheckpointEntry], count: int) -> list[CheckpointEntry]:
    """`count` of the `entries`, evenly spread from newest to oldest (0: all)."""
    if count <= 0 or count >= len(entries):
        return entries
    return [entries[number * (len(entries) - 1) // max(1, count - 1)] for number in range(count)]


def _look(
    entries: list[CheckpointEntry], config: ScrubConfig, fs: Fs
) -> dict[CheckpointEntry, ScrubResult]:
    """The result for each entry, without those that were retired meanwhile, which is no damage."""
    # reads of one checkpoint overlap with hashing of another
    with ThreadPoolExecutor(workers()) as pool:
        reports = list(
            pool.map(
                lambda entry: verify_checkpoint(
                    entry.path, config.integrity, fs, once=not config.deep
                ),
                entries,
            )
        )
    for report in reports:
        if report.unread is not None and report.unread.errno in catalog.TRANSIENT_ERRNOS:
            raise report.unread
    diagnoses = [
        None if report.ok else diagnose(report.path, config.integrity, fs) for report in reports
    ]
    looked = {
        entry: ScrubResult(report, found)
        for entry, report, found in zip(entries, reports, diagnoses, strict=True)
    }
    return {
        entry: one
        for entry, one in looked.items()
        if one.ok or any(_exists(fs, path) for path in entry.files)
    }


def _in_order(
    entries: list[CheckpointEntry], looked: dict[CheckpointEntry, ScrubResult]
) -> tuple[ScrubResult, ...]:
    return tuple(looked[entry] for entry in entries if entry in looked)


def _pointers(fs: Fs, folder: Path, refused: set[str]) -> tuple[str, ...]:
    """Errors in the existing pointers. Recovery does not use them, but people and scripts do.

    The folder is listed again after each is read: it may name a checkpoint committed meanwhile.
    """
    found = []
    for name, target_of in ((LATEST, _named_in_latest), (LATEST_OK, _named_by_link)):
        try:
            target = target_of(fs, folder)
        except (StorageError, RefusedFile, ValueError, RecursionError, OSError) as error:
            found.append(f"{name} is damaged ({str(error)[:120]})")
            continue
        if target is not None and target not in {entry.path.name for entry in _entries(fs, folder)}:
            found.append(f"{name} points to {target[:80]!r}, which is no checkpoint here")
        elif target in refused:
            found.append(f"{name} points to {target}, which is refused")
    return tuple(found)


def _named_in_latest(fs: Fs, folder: Path) -> str | None:
    if not _exists(fs, folder / LATEST):
        return None
    value = parse(read_small_in(fs, folder, LATEST, _MAX_POINTER))
    if not isinstance(value, dict) or not isinstance(value.get("path"), str):
        raise ValueError("names no path")
    return str(value["path"])


def _named_by_link(fs: Fs, folder: Path) -> str | None:
    path = folder / LATEST_OK
    if not _exists(fs, path):
        return None
    if not stat.S_ISLNK(fs.stat(path).st_mode):
        raise ValueError("is no symbolic link")
    return str(path.readlink())


def _exists(fs: Fs, path: Path) -> bool:
    try:
        fs.stat(path)
    except StorageError as error:
        if error.errno != errno.ENOENT:
            raise
        return False
    return True
