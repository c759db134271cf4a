"""Repairs the records of a checkpoint in memory: tries every bit until the record matches its hash.

MANIFEST grows with the checkpoint, and the search with its square: a large one is rebuilt from the parts instead.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from ecrl_cli.checkpoint.format.hashing import document_entry
from ecrl_cli.checkpoint.format.manifest import Commit, Manifest, PartEntry, read_commit, read_manifest
from ecrl_cli.checkpoint.format.names import TRAIN
from ecrl_cli.checkpoint.repair.crc_bit_flip import BitFlip, flipped, search, search_by_hash
from ecrl_cli.checkpoint.repair.manifest_rebuild import Entries, rebuild_manifest
from ecrl_cli.errors import StorageError
from ecrl_cli.storage.safe_read import RefusedFile

MAX_SEARCH = 16 * 1024  # largest text, in bytes, of which every bit is tried: a few seconds
MAX_COMMIT_SEARCH = 2 * 1024  # bytes; each try parses the record; a real one has some 400 bytes

_T = TypeVar("_T")
_SIDECAR = (b'{"commit":', b',"manifest":', b',"train":', b"}")


@dataclass(frozen=True)
class RepairedRecord(Generic[_T]):
    """A record of `bytes` bytes: its value (None: it cannot be repaired) and the bits that had to be flipped."""

    value: _T | None
    bytes: int
    flips: tuple[BitFlip, ...] = ()


def repair_commit(data: bytes) -> RepairedRecord[Commit]:
    """Repair COMMIT, which carries its own hash."""
    flip = None if _is_commit(data) or len(data) > MAX_COMMIT_SEARCH else search(data, _is_commit)
    return RepairedRecord(_commit(flipped(data, flip) if flip else data), len(data), _moved(flip, 0))


def repair_manifest(data: bytes, sha256: str, entries: Entries) -> RepairedRecord[Manifest]:
    """Repair MANIFEST, whose `sha256` is in COMMIT; `entries` rebuilds its part entries from the files."""
    flips: tuple[BitFlip, ...] = ()
    if hashlib.sha256(data).hexdigest() != sha256:
        flips = _moved(search_by_hash(data, sha256) if len(data) <= MAX_SEARCH else None, 0)
        with suppress(ValueError, RecursionError, RefusedFile, StorageError):
            flips = flips or rebuild_manifest(data, sha256, entries)
        if not flips:
            return RepairedRecord(None, len(data))
        for flip in flips:
            data = flipped(data, flip)
    with suppress(ValueError, RecursionError):
        return RepairedRecord(read_manifest(data), len(data), flips)
    return RepairedRecord(None, len(data))


def repair_sidecar(data: bytes, entry: Entries) -> RepairedRecord[Manifest]:
    """Repair a sidecar: commit, manifest and the text of train.json each have a hash, so only the damaged one is searched.
    `entry` rebuilds the entry of the data file."""
    spans = _split(data)
    if spans is None:
        flip = search(data, lambda changed: _manifest_of(changed) is not None) if len(data) <= MAX_SEARCH else None
        return RepairedRecord(_manifest_of(flipped(data, flip)) if flip else None, len(data), _moved(flip, 0))
    (commit_at, commit), (manifest_at, manifest), (train_at, train) = spans
    mended = repair_commit(commit)
    text = repair_manifest(manifest, mended.value.manifest_sha256, lambda: entry() | _train_entry(train)) if mended.value else None
    if text is None or text.value is None or TRAIN not in text.value.parts:
        return RepairedRecord(None, len(data))
    sha256, flip = text.value.parts[TRAIN].sha256, None
    if not _is_train(train, sha256):
        flip = search(train, lambda changed: _is_train(changed, sha256)) if len(train) <= MAX_SEARCH else None
        if flip is None:
            return RepairedRecord(None, len(data))
    moved = [(mended.flips, commit_at), (text.flips, manifest_at), (_moved(flip, 0), train_at)]
    return RepairedRecord(text.value, len(data), tuple(changed for flips, start in moved for each in flips for changed in _moved(each, start)))


def _split(data: bytes) -> tuple[tuple[int, bytes], ...] | None:
    """Offset and bytes of the three values of a canonical sidecar; None if the JSON around them is damaged."""
    first, second, third, last = _SIDECAR
    middle, end = data.find(second), data.rfind(third)
    if not (data.startswith(first) and data.endswith(last) and 0 <= middle < end):
        return None
    bounds = [(len(first), middle), (middle + len(second), end), (end + len(third), len(data) - len(last))]
    return tuple((start, data[start:stop]) for start, stop in bounds)


def _manifest_of(data: bytes) -> Manifest | None:
    """The manifest of an undamaged sidecar, else None."""
    spans = _split(data)
    if spans is None:
        return None
    (_, commit_text), (_, manifest_text), (_, train) = spans
    commit = _commit(commit_text)
    if commit is None or hashlib.sha256(manifest_text).hexdigest() != commit.manifest_sha256:
        return None
    with suppress(ValueError, RecursionError, KeyError):
        manifest = read_manifest(manifest_text)
        return manifest if _is_train(train, manifest.parts[TRAIN].sha256) else None
    return None


def _is_train(text: bytes, sha256: str) -> bool:
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
        return isinstance(value, str) and hashlib.sha256(value.encode()).hexdigest() == sha256
    return False


def _is_commit(data: bytes) -> bool:
    return _commit(data) is not None


def _train_entry(text: bytes) -> dict[str, PartEntry]:
    return {TRAIN: document_entry(str(json.loads(text)).encode())}


def _commit(data: bytes) -> Commit | None:
    with suppress(ValueError, RecursionError):
        return read_commit(data)
    return None


def _moved(flip: BitFlip | None, by: int) -> tuple[BitFlip, ...]:
    return (BitFlip(flip.offset + by, flip.bit),) if flip else ()
