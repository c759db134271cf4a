"""The records MANIFEST and COMMIT: their content, how they are made, and how untrusted ones are read."""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import Any

from ecrl_cli.checkpoint.format.canonical_json import canonical_json, digest, parse_canonical
from ecrl_cli.checkpoint.format.image import DTYPES, TensorPlace, TensorSpec
from ecrl_cli.checkpoint.format.names import CHUNK, COMPONENTS, FORMAT_VERSION, PART_NAME
from ecrl_cli.config.codec import decode, encode
from ecrl_cli.errors import shown

MAX_COMMIT = 64 * 1024
MAX_MANIFEST = 16 * 2**20  # holds the chunk sums of 64 GiB
MAX_PARTS, MAX_TENSORS, MAX_DIMS, MAX_NAME = 64, 100_000, 16, 512

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class TensorEntry:
    """`dtype` as torch spells it ("torch.float32"); `sha256` over str(dtype), str(tuple(shape)) and the raw C-order bytes."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str


@dataclass(frozen=True)
class PartEntry:
    """One file: its size, its SHA-256, a zlib.crc32 per CHUNK bytes (locates damage), its tensors (none in a JSON part)."""

    bytes: int
    sha256: str
    chunk_crc32: tuple[int, ...]
    tensors: dict[str, TensorEntry]


@dataclass(frozen=True)
class Manifest:
    """The parts of a checkpoint. `epoch` and `cursor_step` name the window that the next step consumes."""

    schema_version: int
    run_id: str
    attempt: int
    global_step: int
    epoch: int
    cursor_step: int
    seed: int
    world_size: int
    parts: dict[str, PartEntry]

    def encoded(self) -> bytes:
        return canonical_json(encode(self))


@dataclass(frozen=True)
class Commit:
    """The commit record. `self_sha256` is over the canonical body without that key, and is the checkpoint's identity everywhere else.

    `hmac_sha256`: only if the run has an HMAC key; over the canonical body without the two hashes. Otherwise the record has no such field.
    """

    manifest_sha256: str
    run_id: str
    attempt: int
    global_step: int
    prev_commit_sha256: str | None
    self_sha256: str
    hmac_sha256: str | None = None

    def document(self) -> dict[str, Any]:
        """The record as JSON values."""
        return {key: value for key, value in encode(self).items() if key != "hmac_sha256" or value is not None}

    def encoded(self) -> bytes:
        return canonical_json(self.document())


@dataclass(frozen=True)
class Components:
    """One digest per component: SHA-256 of the canonical [[name, tensor sha256], ...], sorted by name."""

    parameters: str
    buffers: str
    optimizer: str
    rng: str


def make_commit(manifest: Manifest, manifest_sha256: str, previous: str | None, key: bytes = b"") -> Commit:
    """The commit record of `manifest`, with a MAC if `key` is not empty. `previous`: identity of the preceding commit."""
    body: dict[str, Any] = {
        "manifest_sha256": manifest_sha256,
        "run_id": manifest.run_id,
        "attempt": manifest.attempt,
        "global_step": manifest.global_step,
        "prev_commit_sha256": previous,
    }
    if key:
        body["hmac_sha256"] = _mac(body, key)
    return Commit(**body, self_sha256=digest(body))


def read_commit(data: bytes, key: bytes = b"") -> Commit:
    """The commit record in `data`; ValueError unless it matches its own hash and, given a `key`, its MAC.

    Without a key the MAC is ignored: readers do not need the key.
    """
    value = _document(data, MAX_COMMIT)
    commit: Commit = _decoded(Commit, value)
    body = {key: item for key, item in value.items() if key != "self_sha256"}
    if digest(body) != commit.self_sha256:
        raise ValueError("self_sha256 does not match")
    mac = body.pop("hmac_sha256", "")
    if mac is None:
        raise ValueError("hmac_sha256 is null")
    if key and not hmac.compare_digest(mac.encode(), _mac(body, key).encode()):
        raise ValueError("hmac_sha256 does not match the key" if mac else "has no hmac_sha256, and a key is configured")
    _hex(commit.manifest_sha256)
    if commit.prev_commit_sha256 is not None:
        _hex(commit.prev_commit_sha256)
    return commit


def read_manifest(data: bytes) -> Manifest:
    """The manifest in `data`; ValueError unless it is valid and within the limits. Its hash must have been checked before."""
    value = _document(data, MAX_MANIFEST)
    version = value.get("schema_version")
    if type(version) is not int or version != FORMAT_VERSION:
        way_out = "upgrade ECRL" if type(version) is int and version > FORMAT_VERSION else "no ECRL has written such a version"
        raise ValueError(f"checkpoint format {shown(version, 20)}, this ECRL reads {FORMAT_VERSION}; {way_out}")
    manifest: Manifest = _decoded(Manifest, value)
    numbers = (manifest.attempt, manifest.global_step, manifest.epoch, manifest.cursor_step, manifest.seed)
    if min(numbers) < 0 or manifest.world_size < 1:
        raise ValueError("negative numbers")
    if not 0 < len(manifest.parts) <= MAX_PARTS:
        raise ValueError(f"{len(manifest.parts)} parts")
    if sum(len(part.tensors) for part in manifest.parts.values()) > MAX_TENSORS:
        raise ValueError("too many tensors")
    for name, part in manifest.parts.items():
        _check_part(name, part)
    return manifest


def components(manifest: Manifest) -> Components:
    """The component digests of `manifest`."""
    tensors = {name: entry.sha256 for part in manifest.parts.values() for name, entry in part.tensors.items()}
    return components_of(tensors)


def components_of(tensors: dict[str, str]) -> Components:
    """The component digests, from each tensor's name (its first word is the component) and SHA-256."""
    pairs: dict[str, list[list[str]]] = {component: [] for component in COMPONENTS}
    for name in sorted(tensors):
        pairs[name.partition(".")[0]].append([name, tensors[name]])
    return Components(**{component: digest(pairs[component]) for component in COMPONENTS})


def _mac(body: dict[str, Any], key: bytes) -> str:
    return hmac.new(key, canonical_json(body), hashlib.sha256).hexdigest()


def _document(data: bytes, limit: int) -> dict[str, Any]:
    if len(data) > limit:
        raise ValueError(f"{len(data)} bytes, at most {limit} are read")
    value = parse_canonical(data)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def _decoded(kind: Any, value: dict[str, Any]) -> Any:
    try:
        return decode(kind, value)
    except (TypeError, KeyError) as error:
        raise ValueError(str(error.args[0])[:120]) from error


def _check_part(name: str, part: PartEntry) -> None:
    if not PART_NAME.fullmatch(name) or ".." in name:
        raise ValueError(f"part name {name[:80]!r}")
    _hex(part.sha256)
    if part.bytes < 0 or len(part.chunk_crc32) != -(-part.bytes // CHUNK):
        raise ValueError(f"{name}: {part.bytes} bytes with {len(part.chunk_crc32)} chunk sums")
    if any(not 0 <= crc < 2**32 for crc in part.chunk_crc32):
        raise ValueError(f"{name}: a chunk sum out of range")
    for tensor, entry in part.tensors.items():
        _hex(entry.sha256)
        if not 0 < len(tensor) <= MAX_NAME or tensor.partition(".")[0] not in COMPONENTS:
            raise ValueError(f"{name}: tensor name {tensor[:80]!r}")
        if len(entry.shape) > MAX_DIMS or any(size < 0 for size in entry.shape):
            raise ValueError(f"{name}: shape of {tensor[:80]!r}")


def _hex(text: str) -> None:
    if not _SHA256.fullmatch(text):
        raise ValueError(f"not a SHA-256: {text[:20]!r}")


def expected_places(entry: PartEntry) -> list[TensorPlace]:
    """The tensors' places by the manifest alone, if the part is laid out as by `image.plan_image`. Only the header can confirm them."""
    specs = [TensorSpec(name, tensor.dtype, tensor.shape) for name, tensor in entry.tensors.items()]
    if any(spec.dtype not in DTYPES for spec in specs):
        return []
    offset, found = entry.bytes - sum(spec.nbytes for spec in specs), []
    for spec in sorted(specs, key=lambda spec: (-DTYPES[spec.dtype][1], spec.name)):
        found.append(TensorPlace(spec, offset))
        offset += spec.nbytes
    return found if found and found[0].offset >= 8 else []
