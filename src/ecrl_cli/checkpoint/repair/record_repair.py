"""Repairs the records of a checkpoint in memory: tries every bit until the record matches its hash.

MANIFEST grows with the checkpoint, and the search with its square: a large one is rebuilt from the
parts instead. The result is not trusted: the SHA-256 of the rebuilt manifest must match the one in
COMMIT.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from ecrl_cli.checkpoint.format.canonical_json import canonical_json, parse
from ecrl_cli.checkpoint.format.hashing import (
    chunk_sums,
    document_entry,
    hexdigest,
    leaves,
    root,
    streamed,
    tensor_prefix,
)
from ecrl_cli.checkpoint.format.image import DTYPES, TensorSpec
from ecrl_cli.checkpoint.format.manifest import (
    MAX_DIMS,
    Commit,
    Manifest,
    PartEntry,
    TensorEntry,
    encoded_part,
    read_commit,
    read_manifest,
)
from ecrl_cli.checkpoint.format.names import TRAIN
from ecrl_cli.checkpoint.format.tensor_table import header_length
from ecrl_cli.checkpoint.repair.damage import BitFlip, flipped, search, search_by_hash
from ecrl_cli.config.schema import DIGESTS
from ecrl_cli.errors import StorageError
from ecrl_cli.storage.fs import Fs
from ecrl_cli.storage.safe_read import RefusedFile, fill, pieces, read_small

MAX_SEARCH = 16 * 1024  # largest text, in bytes, of which every bit is tried: a few seconds
MAX_COMMIT_SEARCH = 2 * 1024  # bytes; each try parses the record; a real one has some 400 bytes

_T = TypeVar("_T")
_SIDECAR = (b'{"commit":', b',"manifest":', b',"train":', b"}")

MAX_DIFFERENCES = 512  # bits: more differences are not bit flips
MAX_HASHED = 4 * 2**30  # most bytes that a search may hash: some seconds
_OPEN, _CLOSE = b'"parts":', b',"run_id":'  # around the parts in a canonical manifest
_TORCH = {short: dtype for dtype, (short, _) in DTYPES.items()}


@dataclass(frozen=True)
class Form:
    """Which format version and digest a manifest has."""

    version: int
    digest: str


_FORMS = (*(Form(2, digest) for digest in DIGESTS), Form(1, "sha256"))

Entries = Callable[[Form], dict[str, PartEntry]]


@dataclass(frozen=True)
class RepairedRecord(Generic[_T]):
    """A record of `bytes` bytes: its value (None: it cannot be repaired) and the bits that had to
    be flipped.
    """

    value: _T | None
    bytes: int
    flips: tuple[BitFlip, ...] = ()


def repair_commit(data: bytes) -> RepairedRecord[Commit]:
    """Repair COMMIT, which carries its own hash."""
    flip = None if _is_commit(data) or len(data) > MAX_COMMIT_SEARCH else search(data, _is_commit)
    return RepairedRecord(
        _commit(flipped(data, flip) if flip else data), len(data), _moved(flip, 0)
    )


def repair_manifest(data: bytes, sha256: str, entries: Entries) -> RepairedRecord[Manifest]:
    """Repair MANIFEST, whose `sha256` is in COMMIT; `entries` rebuilds its part entries from the
    files.
    """
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
    """Repair a sidecar: commit, manifest and the text of train.json each have a hash, so only the
    damaged one is searched. `entry` rebuilds the entry of the data file.
    """
    spans = _split(data)
    if spans is None:
        flip = (
            search(data, lambda changed: _manifest_of(changed) is not None)
            if len(data) <= MAX_SEARCH
            else None
        )
        return RepairedRecord(
            _manifest_of(flipped(data, flip)) if flip else None, len(data), _moved(flip, 0)
        )
    (commit_at, commit), (manifest_at, manifest), (train_at, train) = spans
    mended = repair_commit(commit)

    def entries(form: Form) -> dict[str, PartEntry]:
        return entry(form) | {
            TRAIN: document_entry(str(json.loads(train)).encode(), form.digest, form.version)
        }

    text = (
        repair_manifest(manifest, mended.value.manifest_sha256, entries) if mended.value else None
    )
    if text is None or text.value is None or TRAIN not in text.value.parts:
        return RepairedRecord(None, len(data))
    manifest_value, flip = text.value, None
    if not _is_train(train, manifest_value):
        flip = (
            search(train, lambda changed: _is_train(changed, manifest_value))
            if len(train) <= MAX_SEARCH
            else None
        )
        if flip is None:
            return RepairedRecord(None, len(data))
    moved = [(mended.flips, commit_at), (text.flips, manifest_at), (_moved(flip, 0), train_at)]
    return RepairedRecord(
        text.value,
        len(data),
        tuple(
            changed for flips, start in moved for each in flips for changed in _moved(each, start)
        ),
    )


def _split(data: bytes) -> tuple[tuple[int, bytes], ...] | None:
    """Offset and bytes of the three values of a canonical sidecar; None if the JSON around them is
    damaged.
    """
    first, second, third, last = _SIDECAR
    middle, end = data.find(second), data.rfind(third)
    if not (data.startswith(first) and data.endswith(last) and 0 <= middle < end):
        return None
    bounds = [
        (len(first), middle),
        (middle + len(second), end),
        (end + len(third), len(data) - len(last)),
    ]
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
        return manifest if _is_train(train, manifest) else None
    return None


def _is_train(text: bytes, manifest: Manifest) -> bool:
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
        return (
            isinstance(value, str)
            and hexdigest(manifest.digest, value.encode()) == manifest.parts[TRAIN].digest
        )
    return False


def _is_commit(data: bytes) -> bool:
    return _commit(data) is not None


def _commit(data: bytes) -> Commit | None:
    with suppress(ValueError, RecursionError):
        return read_commit(data)
    return None


def _moved(flip: BitFlip | None, by: int) -> tuple[BitFlip, ...]:
    return (BitFlip(flip.offset + by, flip.bit),) if flip else ()


def rebuild_manifest(data: bytes, sha256: str, entries: Entries) -> tuple[BitFlip, ...]:
    """The flipped bits of the manifest `data`: those where its parts differ from `entries`, and at
    most one outside of them. Empty if undoing them does not give `sha256`; raises what `entries`
    raises if the parts cannot be read.
    """
    # the form that the text shows first: each costs a pass over the parts
    shown = {
        form: b'"chunk_crc32"' if form.version == 1 else f'"digest":"{form.digest}"'.encode()
        for form in _FORMS
    }
    likely = sorted(_FORMS, key=lambda form: shown[form] not in data)
    return next((flips for form in likely if (flips := _rebuilt(data, sha256, form, entries))), ())


def _rebuilt(data: bytes, sha256: str, form: Form, entries: Entries) -> tuple[BitFlip, ...]:
    begin, end = data.find(_OPEN) + len(_OPEN), data.rfind(_CLOSE)
    if begin < len(_OPEN) or end < begin:
        return ()
    parts = canonical_json(
        {name: encoded_part(entry, form.version) for name, entry in entries(form).items()}
    )
    made = data[:begin] + parts + data[end:]
    if len(made) != len(data):
        return ()
    if hashlib.sha256(made).hexdigest() != sha256:
        if (begin + len(made) - end) * 8 * len(made) > MAX_HASHED:
            return ()
        outside = (
            BitFlip(offset, bit)
            for offset in (*range(begin), *range(end, len(made)))
            for bit in range(8)
        )
        flip = next(
            (flip for flip in outside if hashlib.sha256(flipped(made, flip)).hexdigest() == sha256),
            None,
        )
        if flip is None:
            return ()
        made = flipped(made, flip)
    changed = [
        offset for offset, (one, other) in enumerate(zip(data, made, strict=True)) if one != other
    ]
    flips = [
        BitFlip(offset, bit)
        for offset in changed[:MAX_DIFFERENCES]
        for bit in range(8)
        if (data[offset] ^ made[offset]) >> bit & 1
    ]
    return tuple(flips) if len(changed) <= MAX_DIFFERENCES >= len(flips) else ()


def rebuild_entry(fs: Fs, fd: int, size: int, name: str, form: Form, limit: int) -> PartEntry:
    """The manifest entry of an open part as it is now. ValueError if its tensors cannot be read."""
    if not name.endswith(".safetensors"):
        if name.endswith(".pt"):
            raise ValueError("the tensors of a torch file are not read here")
        return document_entry(read_small(fs, fd, size, limit), form.digest, form.version)
    if size > limit:
        raise ValueError(f"{size} bytes, at most {limit} are read")
    sums = tuple(
        crc for piece in pieces(fs, fd, 0, size) for crc in chunk_sums(piece, form.version)
    )
    entry = PartEntry(size, "", sums, _tensors(fs, fd, size, form.digest))
    digests = [
        (
            entry.tensors[leaf.place.spec.name].digest
            if leaf.place
            else streamed(form.digest, leaf.prefix, pieces(fs, fd, leaf.start, leaf.end))
        )
        for leaf in leaves(name, entry, form.version)
    ]
    return replace(entry, digest=root(form.digest, digests))


def _tensors(fs: Fs, fd: int, size: int, digest: str) -> dict[str, TensorEntry]:
    length = header_length(bytes(fill(fs, fd, memoryview(bytearray(8)), 0)), size)
    header = parse(bytes(fill(fs, fd, memoryview(bytearray(length)), 8)))
    if not isinstance(header, dict):
        raise ValueError("not an object")
    specs = {name: _spec(name, item) for name, item in header.items()}
    if sum(end - begin for _, begin, end in specs.values()) > size:
        raise ValueError("tensors overlap")  # and would be hashed many times
    return {
        name: _tensor(fs, fd, spec, 8 + length + begin, 8 + length + end, digest)
        for name, (spec, begin, end) in specs.items()
    }


def _spec(name: str, item: Any) -> tuple[TensorSpec, int, int]:
    try:
        begin, end = (int(number) for number in item["data_offsets"])
        spec = TensorSpec(
            name, _TORCH[item["dtype"]], tuple(int(number) for number in item["shape"])
        )
    except (KeyError, TypeError) as error:
        raise ValueError("an entry of the header") from error
    if len(spec.shape) > MAX_DIMS or min(spec.shape, default=0) < 0:
        raise ValueError("a shape in the header")
    if begin < 0 or end - begin != spec.nbytes:
        raise ValueError("offsets in the header")
    return spec, begin, end


def _tensor(fs: Fs, fd: int, spec: TensorSpec, start: int, end: int, digest: str) -> TensorEntry:
    found = streamed(digest, tensor_prefix(spec.dtype, spec.shape), pieces(fs, fd, start, end))
    return TensorEntry(spec.dtype, spec.shape, found)
