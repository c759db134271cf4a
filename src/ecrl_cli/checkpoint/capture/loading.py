"""Loads a checkpoint's tensors: each byte is read once, hashed while it is read and used only if it
is what was committed. Never unpickles.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ecrl_cli.checkpoint.capture.shared_memory import SnapshotPair
from ecrl_cli.checkpoint.capture.tensor_sources import dtype_of
from ecrl_cli.checkpoint.format.canonical_json import parse
from ecrl_cli.checkpoint.format.hashing import Leaf, batches, leaves, root, streamed, workers
from ecrl_cli.checkpoint.format.image import TensorPlace
from ecrl_cli.checkpoint.format.manifest import Manifest
from ecrl_cli.checkpoint.format.names import TRAIN, must_be_finite
from ecrl_cli.checkpoint.format.tensor_table import all_finite, tensor_table
from ecrl_cli.checkpoint.store.integrity import (
    CheckpointRejected,
    IntegrityConfig,
    OpenCheckpoint,
    expect_digest,
    expect_places,
    expect_tensor,
    layer,
    opened,
)
from ecrl_cli.errors import EcrlError, StorageError
from ecrl_cli.storage.fs import Fs, PosixFs
from ecrl_cli.storage.safe_read import PIECE, fill

# The integrity check has already checked owner and size; here the expected commit pins every byte.
_PINNED = IntegrityConfig(max_bytes=2**62, trust_owner=True)


@dataclass(frozen=True)
class Loaded:
    """The tensors by name (views of the memory that was read: copy, do not keep) and the content of
    train.json.
    """

    tensors: dict[str, torch.Tensor]
    train: dict[str, Any]


@dataclass(frozen=True)
class LoadedCheckpoint(Loaded):
    manifest: Manifest


def load_checkpoint(
    path: Path, commit_sha256: str | None = None, finite: str = "all"
) -> LoadedCheckpoint:
    """Read the checkpoint at `path`; StorageError, naming the layer, unless it is complete and (if
    given) committed as `commit_sha256`.

    Applies every layer of the integrity check with each byte read once (`verify_checkpoint`,
    `once`). `finite`: checkpoint.finite.
    """
    fs, found = PosixFs(), OpenCheckpoint()
    try:
        with opened(path, _PINNED, fs, found):
            assert found.commit is not None and found.manifest is not None
            if commit_sha256 is not None and found.commit.self_sha256 != commit_sha256:
                raise CheckpointRejected(
                    "commit", f"is {found.commit.self_sha256[:8]}, not {commit_sha256[:8]}"
                )
            with ThreadPoolExecutor(workers()) as pool:
                parts = [_Part(fs, name, found, pool) for name in found.files if name != TRAIN]
                tensors = {
                    name: tensor
                    for part in parts
                    for name, tensor in part.tensors(found, finite).items()
                }
            with layer("schema"):
                train = parse(found.train)
    except CheckpointRejected as refused:
        raise StorageError(
            "restore",
            f"{path.name} failed at {refused.layer}: {refused.reason}",
            "resume from another checkpoint",
        ) from refused
    return LoadedCheckpoint(tensors, train, found.manifest)


def load_snapshot(snapshots: SnapshotPair, global_step: int, sha256: str, digest: str) -> Loaded:
    """The snapshot of `global_step` whose content (hashed by `digest`) has that hash; EcrlError if
    there is none. One of that step with another hash is withdrawn, so that the next attempt does
    not choose it.
    """
    for snapshot in snapshots.whole():
        if snapshot.global_step == global_step:
            if snapshot.content(digest).sha256 == sha256:
                return Loaded(
                    {
                        place.spec.name: tensor_at(snapshot.memory, place)
                        for place in snapshot.tensors
                    },
                    parse(snapshot.train),
                )
            snapshots.withdraw(snapshot.number)
    raise EcrlError(
        "restore",
        f"the snapshot of step {global_step} in memory is not the one that was chosen",
        "resume the run",
        code="snapshot",
    )


class _Part:
    """A part that threads read into memory and hash; `tensors` waits for them."""

    def __init__(self, fs: Fs, name: str, found: OpenCheckpoint, pool: ThreadPoolExecutor) -> None:
        assert found.manifest is not None
        self._name, self._entry, digest = name, found.manifest.parts[name], found.manifest.digest
        with layer("schema"):
            self._tree = leaves(name, self._entry, found.manifest.schema_version)
        with layer("hash"):
            self._data = bytearray(self._entry.bytes)

        def read(batch: list[Leaf]) -> list[str]:
            return [
                streamed(digest, leaf.prefix, self._filled(fs, found.files[name], leaf))
                for leaf in batch
            ]

        self._jobs = [
            pool.submit(read, batch)
            for batch in batches(self._tree, [leaf.nbytes for leaf in self._tree])
        ]

    def tensors(self, found: OpenCheckpoint, finite: str) -> dict[str, torch.Tensor]:
        """The part's tensors by name: views of its memory. CheckpointRejected, naming the layer."""
        name, entry, view = self._name, self._entry, memoryview(self._data)
        assert found.manifest is not None
        with layer("hash"):
            digests = [digest for job in self._jobs for digest in job.result()]
        expect_digest(name, root(found.manifest.digest, digests), found.manifest)
        with layer("schema"):
            laid_out = tensor_table(
                lambda offset, count: bytes(view[offset : offset + count]), name, entry, found.train
            )
        hashed = {
            leaf.place: digest
            for leaf, digest in zip(self._tree, digests, strict=True)
            if leaf.place
        }
        if hashed:
            expect_places(name, laid_out, hashed)
        for place, digest in hashed.items():
            expect_tensor(place, digest, entry)
        for place in laid_out:
            piece = view[place.offset : place.offset + place.spec.nbytes]
            if must_be_finite(place.spec.name, finite) and not all_finite(place.spec.dtype, piece):
                raise CheckpointRejected("finite", f"{place.spec.name[:80]} holds NaN or infinity")
        return {place.spec.name: tensor_at(self._data, place) for place in laid_out}

    def _filled(self, fs: Fs, fd: int, leaf: Leaf) -> Iterator[memoryview]:
        """Reads the leaf's bytes into memory, piece by piece."""
        view = memoryview(self._data)
        for start in range(leaf.start, leaf.end, PIECE):
            yield fill(fs, fd, view[start : min(start + PIECE, leaf.end)], start)


def tensor_at(memory: Any, place: TensorPlace) -> torch.Tensor:
    """The tensor at `place` in `memory`: a view whose storage covers just its own bytes."""
    dtype = dtype_of(place.spec)
    if not place.spec.nbytes:
        return torch.empty(place.spec.shape, dtype=dtype)
    count = place.spec.nbytes // dtype.itemsize
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=place.offset).view(
        place.spec.shape
    )
