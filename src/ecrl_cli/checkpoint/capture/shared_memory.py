"""Shared memory (memfd) for staging buffers and snapshots: allocated and touched once, passed
between processes by descriptor. Torch-free.

Snapshots: two memory files held by the supervisor, each for one snapshot. They outlive every rank.
Layout of a file: the image (a checkpoint's parts, as in a staging buffer), its table of tensors,
train.json, and in the last block the record. The record's first word is the step plus one, or 0
while the file holds no complete snapshot. It is set to 0 before anything else changes and written
last, so that a writer that dies in between leaves the other file's snapshot intact. Reads and
writes never overlap: before a read all ranks are dead or wait for each other.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

from ecrl_cli.checkpoint.format.canonical_json import digest, parse
from ecrl_cli.checkpoint.format.hashing import tensor_digest, workers
from ecrl_cli.checkpoint.format.image import (
    PartPlace,
    TensorPlace,
    decode_parts,
    encode_parts,
    round_up,
)
from ecrl_cli.checkpoint.format.names import must_be_finite
from ecrl_cli.checkpoint.format.tensor_table import all_finite
from ecrl_cli.checkpoint.format.train_document import saved_state
from ecrl_cli.errors import StorageError
from ecrl_cli.storage.writing import BLOCK

FILES = 2  # one is being written, the other is complete
_WORD = struct.Struct("<Q")
# step plus one; attempt; offset of the table; bytes of the table; bytes of train.json; SHA-256
# (`_sum`)
_RECORD = struct.Struct("<QQQQQ32s")


class Memory:
    """`nbytes` of page-aligned shared memory; `view` is all of it."""

    def __init__(self, fd: int, nbytes: int) -> None:
        self.fd, self.nbytes = fd, nbytes
        # populate: the page tables now, not at the first copy
        self._map = mmap.mmap(fd, nbytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self.view = memoryview(self._map)

    @classmethod
    def create(cls, nbytes: int) -> Memory:
        """New memory with every page allocated: first touching a page costs seven times a copy into
        it. StorageError if there is not enough.
        """
        fd = os.memfd_create("ecrl-slot", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(fd, 0, nbytes)
            return cls(fd, nbytes)
        except OSError as error:
            os.close(fd)
            raise StorageError.of(
                "allocate", f"a snapshot slot of {nbytes} bytes", error
            ) from error

    def disown(self) -> None:
        """Close the descriptor and leave the memory mapped, until the last tensor that was made
        from `view` is gone.
        """
        os.close(self.fd)

    def close(self) -> None:
        """Unmap, unless tensors still refer to it; the memory is freed with its last user."""
        os.close(self.fd)
        with suppress(BufferError):
            self.view.release()
            self._map.close()


class InvalidSnapshot(Exception):
    """Why a complete snapshot may not be resumed from."""


@dataclass(frozen=True)
class SnapshotContent:
    """Digests of a snapshot's content. `sha256`: over every tensor's digest and train.json.
    `state_digest`: parameters, buffers and optimizer, defined as in a rank's log line. `state`:
    each component, see `saved_state`.
    """

    sha256: str
    state_digest: str
    state: dict[str, str]


@dataclass(frozen=True)
class Snapshot:
    """A complete snapshot in file `number`: the state after `global_step` in `attempt`. `memory`
    maps that file, without a copy.
    """

    number: int
    global_step: int
    attempt: int
    tensors: tuple[TensorPlace, ...]
    train: bytes
    memory: mmap.mmap = field(repr=False)

    def content(self, digest_name: str) -> SnapshotContent:
        """Hash the content; reads every byte. `digest_name`: the run's checkpoint.digest, by which
        its ranks log states.
        """
        with ThreadPoolExecutor(workers()) as pool:
            sums = pool.map(
                lambda place: tensor_digest(
                    place.spec.dtype, place.spec.shape, self._bytes(place), digest_name
                ),
                self.tensors,
            )
            found = sorted(
                [place.spec.name, each] for place, each in zip(self.tensors, sums, strict=True)
            )
        state = [pair for pair in found if not pair[0].startswith("rng.")]
        document = parse(self.train)
        saved = saved_state(
            {pair[0]: pair[1] for pair in found}, document if isinstance(document, dict) else {}
        )
        return SnapshotContent(
            digest([hashlib.sha256(self.train).hexdigest(), found]), digest(state), saved
        )

    def check_finite(self, setting: str = "all") -> None:
        """InvalidSnapshot, naming the tensor, if one holds a NaN or infinity that
        checkpoint.finite=`setting` forbids.
        """
        for place in self.tensors:
            if must_be_finite(place.spec.name, setting) and not all_finite(
                place.spec.dtype, self._bytes(place)
            ):
                raise InvalidSnapshot(f"{place.spec.name} holds a NaN or an infinity")

    def _bytes(self, place: TensorPlace) -> memoryview:
        return memoryview(self.memory)[place.offset : place.offset + place.spec.nbytes]


class SnapshotPair:
    """The two memory files, by descriptor. Every process that has them may map them; only one
    writes at a time.
    """

    def __init__(self, fds: Sequence[int]) -> None:
        """Takes ownership of the descriptors."""
        self.fds = tuple(fds)

    @classmethod
    def create(cls) -> SnapshotPair:
        """New, empty files; `make_room` sizes them."""
        return cls([os.memfd_create("ecrl-snapshot") for _ in range(FILES)])

    def whole(self) -> list[Snapshot]:
        """The complete snapshots, newest first."""
        found = [snapshot for number in range(len(self.fds)) if (snapshot := self._read(number))]
        return sorted(
            found, key=lambda snapshot: (snapshot.global_step, snapshot.attempt), reverse=True
        )

    def free(self) -> list[int]:
        """The files that may be written next: those without a complete snapshot, else the one with
        the older snapshot.
        """
        whole = [snapshot.number for snapshot in self.whole()]
        return [number for number in range(len(self.fds)) if number not in whole] or whole[-1:]

    def make_room(self, number: int, nbytes: int) -> int:
        """Grow file `number` to at least `nbytes`; returns its size in bytes. It never shrinks:
        other processes may have mapped it. StorageError if there is not enough memory.
        """
        fd = self.fds[number]
        if (size := os.fstat(fd).st_size) >= nbytes:
            return size
        self.withdraw(number)  # the record would move
        try:
            os.posix_fallocate(fd, 0, nbytes)
        except OSError as error:
            raise StorageError.of(
                "allocate", f"a snapshot of {nbytes} bytes in memory", error
            ) from error
        return nbytes

    def withdraw(self, number: int) -> None:
        """Mark file `number` as holding no complete snapshot."""
        if (size := os.fstat(self.fds[number]).st_size) >= BLOCK:
            os.pwrite(self.fds[number], _WORD.pack(0), size - BLOCK)

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)

    def _read(self, number: int) -> Snapshot | None:
        size = os.fstat(self.fds[number]).st_size
        if size < 2 * BLOCK:
            return None
        memory = mmap.mmap(self.fds[number], size)
        word, attempt, start, table, train, sha256 = _RECORD.unpack_from(memory, size - BLOCK)
        if not word or start + table + train > size - BLOCK:
            return None
        texts = memory[start : start + table], memory[start + table : start + table + train]
        if _sum(word, attempt, start, *texts) != sha256:
            return None
        places = tuple(
            place for part in decode_parts(json.loads(texts[0])) for place in part.tensors
        )
        return Snapshot(number, word - 1, attempt, places, texts[1], memory)


class SnapshotRecord:
    """Writes table, train.json and record of one memory file: `view` is all of it, the image ends
    at `end`.
    """

    def __init__(self, view: memoryview, end: int, parts: tuple[PartPlace, ...]) -> None:
        self._view, self._start, self._at = view, end, len(view) - BLOCK
        self._table = table_of(parts)

    def fits(self, train: bytes) -> bool:
        return self._start + len(self._table) + len(train) <= self._at

    def withdraw(self) -> None:
        _WORD.pack_into(self._view, self._at, 0)

    def commit(self, global_step: int, attempt: int, train: bytes) -> None:
        """Mark the image as complete: table, train.json and record, the record's first word
        last.
        """
        texts, word = self._table + train, global_step + 1
        self._view[self._start : self._start + len(texts)] = texts
        sha256 = _sum(word, attempt, self._start, self._table, train)
        record = _RECORD.pack(0, attempt, self._start, len(self._table), len(train), sha256)
        self._view[self._at : self._at + _RECORD.size] = record
        _WORD.pack_into(self._view, self._at, word)


def table_of(parts: tuple[PartPlace, ...]) -> bytes:
    return json.dumps(encode_parts(parts), separators=(",", ":")).encode()


def room(image: int, parts: tuple[PartPlace, ...], train: bytes) -> int:
    """Bytes of a file for an image of `image` bytes; train.json may grow to twice its size."""
    return round_up(image + len(table_of(parts)) + 2 * len(train) + BLOCK, BLOCK) + BLOCK


def _sum(word: int, attempt: int, start: int, table: bytes, train: bytes) -> bytes:
    state = hashlib.sha256(struct.pack("<QQQQ", word, attempt, start, len(table)))
    state.update(table)
    state.update(train)
    return state.digest()
