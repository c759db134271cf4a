"""Hashes of a checkpoint in memory, computed by threads during the write (hashlib and zlib release the GIL)."""

from __future__ import annotations

import hashlib
import os
import zlib
from concurrent.futures import Future, ThreadPoolExecutor

from ecrl_cli.checkpoint.format.image import CheckpointImage, PartPlace, TensorPlace
from ecrl_cli.checkpoint.format.manifest import PartEntry, TensorEntry
from ecrl_cli.checkpoint.format.names import CHUNK
from ecrl_cli.storage.fs import Buffer


def workers() -> int:
    """Number of hashing threads: one per core that this process may use, at most eight."""
    return min(8, len(os.sched_getaffinity(0)))


def tensor_prefix(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The bytes hashed before a tensor's data: dtype and shape."""
    return f"{dtype}{shape}".encode()


def tensor_sha256(dtype: str, shape: tuple[int, ...], data: Buffer) -> str:
    state = hashlib.sha256(tensor_prefix(dtype, shape))
    state.update(data)
    return state.hexdigest()


def chunk_sums(data: Buffer) -> tuple[int, ...]:
    view = memoryview(data).cast("B")
    return tuple(zlib.crc32(view[start : start + CHUNK]) for start in range(0, len(view), CHUNK))


def document_entry(data: bytes) -> PartEntry:
    """The entry of a JSON part."""
    return PartEntry(len(data), hashlib.sha256(data).hexdigest(), chunk_sums(data), {})


class ImageHasher:
    """Starts hashing all parts of an image in parallel; `entries` waits for the results."""

    def __init__(self, image: CheckpointImage, pool: ThreadPoolExecutor) -> None:
        self._image = image
        self._jobs = [(part, self._start(part, pool)) for part in image.parts]

    def entries(self) -> dict[str, PartEntry]:
        """Every part's entry, the documents' included."""
        parts = {part.name: PartEntry(part.nbytes, sha.result(), sums.result(), tensors.result()) for part, (sha, sums, tensors) in self._jobs}
        return parts | {name: document_entry(data) for name, data in self._image.documents.items()}

    def _start(self, part: PartPlace, pool: ThreadPoolExecutor) -> tuple[Future[str], Future[tuple[int, ...]], Future[dict[str, TensorEntry]]]:
        data = self._image.memory[part.offset : part.offset + part.nbytes]
        return pool.submit(_sha256, data), pool.submit(chunk_sums, data), pool.submit(_tensor_entries, self._image.memory, part.tensors)


def _sha256(data: memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def _tensor_entries(memory: memoryview, places: tuple[TensorPlace, ...]) -> dict[str, TensorEntry]:
    entries = {}
    for place in places:
        spec = place.spec
        data = memory[place.offset : place.offset + spec.nbytes]
        entries[spec.name] = TensorEntry(spec.dtype, spec.shape, tensor_sha256(spec.dtype, spec.shape, data))
    return entries
