"""The records MANIFEST and COMMIT: their content, how they are made, and how untrusted ones are
read.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from dataclasses import dataclass
from typing import Any

from ecrl_cli.checkpoint.format.canonical_json import (
    canonical_json,
    digest,
    is_digest,
    parse_canonical,
)
from ecrl_cli.checkpoint.format.names import (
    CHUNK,
    COMPONENTS,
    DIGEST,
    FORMAT_VERSION,
    PART_NAME,
    READABLE,
    TRAIN,
)
from ecrl_cli.config.codec import decode, encode
from ecrl_cli.config.schema import DIGESTS
from ecrl_cli.errors import shown

MAX_COMMIT = 64 * 1024
MAX_MANIFEST = 16 * 2**20  # holds the chunk sums of 64 GiB
MAX_PARTS, MAX_TENSORS, MAX_DIMS, MAX_NAME = 64, 100_000, 16, 512


@dataclass(frozen=True)
class TensorEntry:
    """`dtype` as torch spells it ("torch.float32"); `digest` over str(dtype), str(tuple(shape)) and
    the raw C-order bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    digest: str


@dataclass(frozen=True)
class PartEntry:
    """One file: its size, its digest and a sum per CHUNK bytes (see `hashing`), its tensors (none
    in a JSON part).
    """

    bytes: int
    digest: str
    chunk_sums: tuple[int, ...]
    tensors: dict[str, TensorEntry]


@dataclass(frozen=True)
class Manifest:
    """The parts of a checkpoint. `epoch` and `cursor_step` name the window that the next step
    consumes. `digest`: which hash the digests of parts and tensors are; records have a SHA-256
    always.
    """

    schema_version: int
    run_id: str
    attempt: int
    global_step: int
    epoch: int
    cursor_step: int
    seed: int
    world_size: int
    parts: dict[str, PartEntry]
    digest: str = DIGEST

    def encoded(self) -> bytes:
        document = encode(self)
        if self.schema_version == 1:
            del document["digest"]
        return canonical_json(
            document
            | {
                "parts": {
                    name: encoded_part(part, self.schema_version)
                    for name, part in self.parts.items()
                }
            }
        )


@dataclass(frozen=True)
class Commit:
    """The commit record. `self_sha256` is over the canonical body without that key, and is the
    checkpoint's identity everywhere else.

    `hmac_sha256`: only if the run has an HMAC key; over the canonical body without the two hashes.
    Otherwise the record has no such field.
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
        return {
            key: value
            for key, value in encode(self).items()
            if key != "hmac_sha256" or value is not None
        }

    def encoded(self) -> bytes:
        return canonical_json(self.document())


@dataclass(frozen=True)
class Components:
    """One digest per component: SHA-256 of the canonical [[name, tensor's digest], ...], sorted by
    name.
    """

    parameters: str
    buffers: str
    optimizer: str
    rng: str


def encoded_part(part: PartEntry, version: int) -> dict[str, Any]:
    """`part` as JSON values, under the names of the format `version`."""
    value: dict[str, Any] = encode(part)
    if version > 1:
        return value
    tensors = {
        name: _renamed(tensor, {"digest": "sha256"}) for name, tensor in value["tensors"].items()
    }
    return {
        **_renamed(value, {"digest": "sha256", "chunk_sums": "chunk_crc32"}),
        "tensors": tensors,
    }


def make_commit(
    manifest: Manifest, manifest_sha256: str, previous: str | None, key: bytes = b""
) -> Commit:
    """The commit record of `manifest`, with a MAC if `key` is not empty. `previous`: identity of
    the preceding commit.
    """
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
    """The commit record in `data`; ValueError unless it matches its own hash and, given a `key`,
    its MAC.

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
        raise ValueError(
            "hmac_sha256 does not match the key"
            if mac
            else "has no hmac_sha256, and a key is configured"
        )
    _hex(commit.manifest_sha256)
    if commit.prev_commit_sha256 is not None:
        _hex(commit.prev_commit_sha256)
    return commit


def read_manifest(data: bytes) -> Manifest:
    """The manifest in `data`; ValueError unless it is valid and within the limits. Its hash must
    have been checked before.
    """
    value = _document(data, MAX_MANIFEST)
    version = value.get("schema_version")
    if type(version) is not int or version not in READABLE:
        way_out = (
            "upgrade ECRL"
            if type(version) is int and version > FORMAT_VERSION
            else "no ECRL has written such a version"
        )
        raise ValueError(
            f"checkpoint format {shown(version, 20)}, this ECRL reads"
            f" {' and '.join(map(str, READABLE))}; {way_out}"
        )
    manifest: Manifest = _decoded(Manifest, value if version > 1 else _of_version_1(value))
    if version > 1 and "digest" not in value:
        raise ValueError("lacks 'digest'")
    if manifest.digest not in DIGESTS:
        raise ValueError(
            f"digest {shown(value.get('digest'), 20)}, this ECRL knows {' and '.join(DIGESTS)}"
        )
    numbers = (
        manifest.attempt,
        manifest.global_step,
        manifest.epoch,
        manifest.cursor_step,
        manifest.seed,
    )
    if min(numbers) < 0 or manifest.world_size < 1:
        raise ValueError("negative numbers")
    if not 0 < len(manifest.parts) <= MAX_PARTS:
        raise ValueError(f"{len(manifest.parts)} parts")
    if sum(len(part.tensors) for part in manifest.parts.values()) > MAX_TENSORS:
        raise ValueError("too many tensors")
    for name, part in manifest.parts.items():
        _check_part(name, part)
    names = [tensor for part in manifest.parts.values() for tensor in part.tensors]
    if len(set(names)) < len(names):
        raise ValueError("a tensor is in two parts")
    return manifest


def components(manifest: Manifest) -> Components:
    """The component digests of `manifest`."""
    return components_of(
        {
            name: entry.digest
            for part in manifest.parts.values()
            for name, entry in part.tensors.items()
        }
    )


def components_of(tensors: dict[str, str]) -> Components:
    """The component digests, from each tensor's name (its first word is the component) and
    digest.
    """
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
    if part.tensors and name == TRAIN:
        raise ValueError(f"{name} holds no tensors")
    _hex(part.digest)
    if part.bytes < 0 or len(part.chunk_sums) != -(-part.bytes // CHUNK):
        raise ValueError(f"{name}: {part.bytes} bytes with {len(part.chunk_sums)} chunk sums")
    if any(not 0 <= crc < 2**32 for crc in part.chunk_sums):
        raise ValueError(f"{name}: a chunk sum out of range")
    for tensor, entry in part.tensors.items():
        _hex(entry.digest)
        if not 0 < len(tensor) <= MAX_NAME or tensor.partition(".")[0] not in COMPONENTS:
            raise ValueError(f"{name}: tensor name {tensor[:80]!r}")
        # torch counts them in 63 bits, of empty tensors too
        strides = math.prod(max(1, size) for size in entry.shape[:MAX_DIMS])
        if len(entry.shape) > MAX_DIMS or any(size < 0 for size in entry.shape) or strides >= 2**63:
            raise ValueError(f"{name}: shape of {tensor[:80]!r}")


def _hex(text: str) -> None:
    if not is_digest(text):
        raise ValueError(f"not a digest: {text[:20]!r}")


def _of_version_1(value: dict[str, Any]) -> dict[str, Any]:
    """A manifest of version 1 under the names of today. ValueError if it has some of them
    already.
    """
    parts = value.get("parts")
    if "digest" in value or not isinstance(parts, dict):
        raise ValueError("a manifest of version 1 has parts and names no digest")
    return value | {
        "digest": "sha256",
        "parts": {name: _part_of_version_1(part) for name, part in parts.items()},
    }


def _part_of_version_1(part: Any) -> Any:
    if not isinstance(part, dict) or not isinstance(part.get("tensors"), dict):
        return part
    tensors = {
        name: _renamed(tensor, {"sha256": "digest"}) for name, tensor in part["tensors"].items()
    }
    return _renamed(part, {"sha256": "digest", "chunk_crc32": "chunk_sums"}) | {"tensors": tensors}


def _renamed(value: Any, names: dict[str, str]) -> Any:
    if not isinstance(value, dict) or any(name in value for name in names.values()):
        raise ValueError("an entry that version 1 does not have")
    return {names.get(name, name): item for name, item in value.items()}
