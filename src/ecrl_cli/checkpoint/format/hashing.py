"""Digests and chunk sums of a checkpoint's parts.

A part's digest is the root of a tree of two levels. Its leaves: the header, and each tensor in file
order, over dtype, shape and bytes as in the manifest. The root: the digest of the leaves' digests
as canonical JSON; a part with one leaf has the leaf's digest. So each byte is hashed once, by
threads, and the same pass gives the digests of part and tensors. A document, a `.pt` file and every
part of format version 1 are one leaf.

Chunk sums locate damage: CRC-32C, in version 1 zlib's CRC-32.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

import google_crc32c
from blake3 import blake3

from ecrl_cli.checkpoint.format.canonical_json import canonical_json
from ecrl_cli.checkpoint.format.image import (
    DTYPES,
    CheckpointImage,
    PartPlace,
    TensorPlace,
    TensorSpec,
    in_file_order,
)
from ecrl_cli.checkpoint.format.manifest import PartEntry, TensorEntry
from ecrl_cli.checkpoint.format.names import CHUNK, DIGEST, FORMAT_VERSION
from ecrl_cli.storage.fs import Buffer

T = TypeVar("T")

TREE_FILES = ".safetensors"
_BATCH = 2**21


class Hash(Protocol):
    def update(self, data: Buffer, /) -> object: ...
    def hexdigest(self) -> str: ...


TITLES = {"blake3": "BLAKE3", "sha256": "SHA-256"}  # as a person reads it
_HASHES: dict[str, Callable[[], Hash]] = {"blake3": blake3, "sha256": hashlib.sha256}


def new_hash(digest: str) -> Hash:
    """`digest`: one of `names.DIGESTS`."""
    return _HASHES[digest]()


def hexdigest(digest: str, data: Buffer, prefix: bytes = b"") -> str:
    """The digest of `prefix` and `data`."""
    return streamed(digest, prefix, (data,))


def streamed(digest: str, prefix: bytes, pieces: Iterable[Buffer]) -> str:
    """The digest of `prefix` and the `pieces` after it, each of which need only be valid until the
    next.
    """
    state = new_hash(digest)
    state.update(prefix)
    for piece in pieces:
        state.update(piece)
    return state.hexdigest()


def workers() -> int:
    """Number of hashing threads: one per core that this process may use, at most eight."""
    return min(8, len(os.sched_getaffinity(0)))


def tensor_prefix(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The bytes hashed before a tensor's data: dtype and shape."""
    return f"{dtype}{shape}".encode()


def tensor_digest(dtype: str, shape: tuple[int, ...], data: Buffer, digest: str = DIGEST) -> str:
    return hexdigest(digest, data, tensor_prefix(dtype, shape))


@dataclass(frozen=True)
class ChunkSum:
    """A CRC: `of` some bytes; its reflected `polynomial`."""

    of: Callable[[Buffer], int]
    polynomial: int


def _crc32c(data: Buffer) -> int:
    return int(google_crc32c.value(bytes(data)))  # takes no memoryview


# by format version
CHUNK_SUMS = {1: ChunkSum(zlib.crc32, 0xEDB88320), 2: ChunkSum(_crc32c, 0x82F63B78)}


def chunk_sums(data: Buffer, version: int = FORMAT_VERSION) -> tuple[int, ...]:
    view, of = memoryview(data).cast("B"), CHUNK_SUMS[version].of
    return tuple(of(view[start : start + CHUNK]) for start in range(0, len(view), CHUNK))


@dataclass(frozen=True)
class Leaf:
    """Bytes `start` to `end` of a part, hashed after `prefix`. `place`: the tensor there, None for
    a header or a whole part.
    """

    start: int
    end: int
    prefix: bytes = b""
    place: TensorPlace | None = None

    @property
    def nbytes(self) -> int:
        return self.end - self.start


def leaves(name: str, entry: PartEntry, version: int) -> tuple[Leaf, ...]:
    """The leaves of the part `name`. ValueError if the manifest's `entry` cannot be one of a part
    as `image.plan_image` lays it out.
    """
    if version == 1 or not name.endswith(TREE_FILES):
        return (Leaf(0, entry.bytes),)
    specs = [TensorSpec(tensor, each.dtype, each.shape) for tensor, each in entry.tensors.items()]
    if unknown := next((spec for spec in specs if spec.dtype not in DTYPES), None):
        raise ValueError(f"{name}: dtype {unknown.dtype[:40]!r}")
    start = entry.bytes - sum(spec.nbytes for spec in specs)
    if start < 8:
        raise ValueError(f"{name} has {entry.bytes} bytes, a header and its tensors need more")
    found = [Leaf(0, start)]
    for spec in in_file_order(specs):
        found.append(
            Leaf(
                start,
                start + spec.nbytes,
                tensor_prefix(spec.dtype, spec.shape),
                TensorPlace(spec, start),
            )
        )
        start += spec.nbytes
    return tuple(found)


def root(digest: str, found: list[str]) -> str:
    """A part's digest, from the digests of its leaves."""
    return found[0] if len(found) == 1 else hexdigest(digest, canonical_json(found))


def batches(items: Sequence[T], sizes: Iterable[int]) -> list[list[T]]:
    """`items` in order, in groups of _BATCH bytes or more: a thread's job should take longer than
    its start. `sizes`: each item's bytes.
    """
    found: list[list[T]] = []
    room = 0
    for item, nbytes in zip(items, sizes, strict=True):
        if room <= 0:
            found.append([])
            room = _BATCH
        found[-1].append(item)
        room -= nbytes
    return found


def document_entry(data: bytes, digest: str = DIGEST, version: int = FORMAT_VERSION) -> PartEntry:
    """The entry of a JSON part."""
    return PartEntry(len(data), hexdigest(digest, data), chunk_sums(data, version), {})


class ImageHasher:
    """Starts hashing all parts of an image in parallel; `entries` waits for the results."""

    def __init__(
        self, image: CheckpointImage, pool: ThreadPoolExecutor, digest: str = DIGEST
    ) -> None:
        self._image, self._digest = image, digest
        self._jobs = [(part, *self._start(part, pool)) for part in image.parts]

    def entries(self) -> dict[str, PartEntry]:
        """Every part's entry, the documents' included."""
        parts = {}
        for part, first, tensors, sums in self._jobs:
            digests = [digest for batch in tensors for digest in batch.result()]
            found = {
                place.spec.name: digest for place, digest in zip(part.tensors, digests, strict=True)
            }
            tree = (
                [first.result(), *found.values()]
                if part.name.endswith(TREE_FILES)
                else [first.result()]
            )
            entries = {
                place.spec.name: TensorEntry(
                    place.spec.dtype, place.spec.shape, found[place.spec.name]
                )
                for place in part.tensors
            }
            parts[part.name] = PartEntry(
                part.nbytes, root(self._digest, tree), sums.result(), entries
            )
        return parts | {
            name: document_entry(data, self._digest) for name, data in self._image.documents.items()
        }

    def _start(
        self, part: PartPlace, pool: ThreadPoolExecutor
    ) -> tuple[Future[str], list[Future[list[str]]], Future[tuple[int, ...]]]:
        """The hash of the header (of the whole part where it is one leaf), those of the tensors,
        and the chunk sums.
        """
        memory, digest = self._image.memory, self._digest
        data = memory[part.offset : part.offset + part.nbytes]
        header = (
            min((place.offset for place in part.tensors), default=part.offset + part.nbytes)
            - part.offset
        )
        first = pool.submit(
            hexdigest, digest, data[:header] if part.name.endswith(TREE_FILES) else data
        )
        tensors = [
            pool.submit(_tensors_at, memory, batch, digest)
            for batch in batches(part.tensors, [place.spec.nbytes for place in part.tensors])
        ]
        return first, tensors, pool.submit(chunk_sums, data)


def _tensors_at(memory: memoryview, places: list[TensorPlace], digest: str) -> list[str]:
    return [
        tensor_digest(
            place.spec.dtype,
            place.spec.shape,
            memory[place.offset : place.offset + place.spec.nbytes],
            digest,
        )
        for place in places
    ]
