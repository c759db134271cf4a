"""Checkpoints of `checkpoint.format=torch` for tests, and how one is forged: every hash made right
again, so that only what it holds is wrong.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ecrl_cli.checkpoint.format.canonical_json import canonical_json
from ecrl_cli.checkpoint.format.hashing import tensor_digest
from ecrl_cli.checkpoint.format.manifest import make_commit, read_manifest
from ecrl_cli.studies.frame.store_fixture import part_entry

Tensors = dict[str, torch.Tensor]


def with_hashes_made_right(path: Path, data: bytes, digests: dict[str, str] | None = None) -> str:
    """Let `data` be the file, with size, hashes, manifest and commit that say so; `digests` by
    tensor as well. Gives the commit.
    """
    sidecar = path.with_suffix(".json")
    document = json.loads(sidecar.read_bytes())
    entry = document["manifest"]["parts"][path.name]
    for name, digest in (digests or {}).items():
        entry["tensors"][name]["digest"] = digest
    entry.update(part_entry(path.name, data, entry["tensors"]))
    manifest = canonical_json(document["manifest"])
    commit = make_commit(
        read_manifest(manifest),
        hashlib.sha256(manifest).hexdigest(),
        document["commit"]["prev_commit_sha256"],
    )
    path.write_bytes(data)
    sidecar.write_bytes(canonical_json(document | {"commit": commit.document()}))
    return commit.self_sha256


def content(path: Path) -> dict[str, Any]:
    return dict(torch.load(path, weights_only=True))


def saved(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def with_tensors(path: Path, change: Callable[[Tensors], Any], *, digests: bool = True) -> str:
    """Change the tensors in the file. With `digests` those of the tensors are made right too."""
    value = content(path)
    change(value["tensors"])
    found = (
        {name: digest_of(tensor) for name, tensor in value["tensors"].items()} if digests else {}
    )
    return with_hashes_made_right(path, saved(value), found)


def rezipped(
    data: bytes, change: Callable[[dict[str, bytes]], Any], compression: int = zipfile.ZIP_STORED
) -> bytes:
    """The same zip file with its entries changed, by their names after the first folder."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = {info.filename: archive.read(info) for info in archive.infolist()}
    change(entries)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, value in entries.items():
            archive.writestr(name, value)
    return file.getvalue()


def digest_of(tensor: torch.Tensor) -> str:
    flat = (
        tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        if tensor.numel()
        else b""
    )
    return tensor_digest(str(tensor.dtype), tuple(tensor.shape), flat)
