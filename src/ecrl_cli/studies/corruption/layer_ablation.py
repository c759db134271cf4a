"""The published mechanisms one at a time: would each alone have detected the damage? The integrity check stops at the first layer that does."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

from ecrl_cli.checkpoint.format.canonical_json import digest, parse, parse_canonical
from ecrl_cli.checkpoint.format.hashing import tensor_sha256
from ecrl_cli.checkpoint.format.image import TensorPlace
from ecrl_cli.checkpoint.format.manifest import Commit, Manifest, PartEntry, read_manifest
from ecrl_cli.checkpoint.format.names import COMMIT, MANIFEST, TRAIN
from ecrl_cli.checkpoint.format.safetensors_header import header_length, places
from ecrl_cli.config.codec import decode
from ecrl_cli.studies.corruption.bytes_fs import Files

MECHANISMS = ("load", "digest", "sha")


def seen_by(files: Files) -> list[str]:
    """Which of MECHANISMS detect damage in a group checkpoint, by file name. load: JSON, schema and headers, no hash. digest: tensor by tensor, if
    the file loads. sha: of each file, if the record naming it can be read."""
    found = {"load": _load(files), "digest": _digest(files), "sha": _sha(files)}
    return [name for name in MECHANISMS if found[name]]


def _load(files: Files) -> bool:
    manifest = _manifest(files)
    if manifest is None or _commit(files) is None or _fails(lambda: parse(files[TRAIN])):
        return True
    return any(_places(files[name], entry) is None for name, entry in manifest.parts.items() if name != TRAIN)


def _digest(files: Files) -> bool:
    manifest = _manifest(files)
    for name, entry in manifest.parts.items() if manifest else ():
        for place in (_places(files[name], entry) or ()) if entry.tensors else ():
            spec = place.spec
            if tensor_sha256(spec.dtype, spec.shape, files[name][place.offset : place.offset + spec.nbytes]) != entry.tensors[spec.name].sha256:
                return True
    return False


def _sha(files: Files) -> bool:
    commit = _json(files[COMMIT])
    if commit is not None:
        body = {key: value for key, value in commit.items() if key != "self_sha256"}
        if digest(body) != commit.get("self_sha256") or hashlib.sha256(files[MANIFEST]).hexdigest() != commit.get("manifest_sha256"):
            return True
    manifest = _manifest(files)
    return any(hashlib.sha256(files[name]).hexdigest() != entry.sha256 for name, entry in manifest.parts.items()) if manifest else False


def _commit(files: Files) -> Commit | None:
    try:
        return decode(Commit, parse_canonical(files[COMMIT]))
    except (ValueError, TypeError, KeyError):
        return None


def _manifest(files: Files) -> Manifest | None:
    """The manifest, if it can be read and names the existing files."""
    try:
        manifest = read_manifest(files[MANIFEST])
    except ValueError:
        return None
    return manifest if manifest.parts.keys() == files.keys() - {COMMIT, MANIFEST} else None


def _json(data: bytes) -> dict[str, object] | None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _places(data: bytes, entry: PartEntry) -> list[TensorPlace] | None:
    """The tensors' offsets in a safetensors file, if its header fits the manifest and the file length."""
    try:
        length = header_length(data[:8], len(data))
        found = places(data[8 : 8 + length], entry)
    except ValueError:
        return None
    end = max((place.offset + place.spec.nbytes for place in found), default=8 + length)
    return found if end == len(data) else None


def _fails(read: Callable[[], object]) -> bool:
    try:
        read()
    except ValueError:
        return True
    return False
