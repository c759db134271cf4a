"""Snapshots in memory: two memory files (memfd) that the supervisor holds, each with room for one. They outlive every rank. Torch-free.

A file: the image (as a checkpoint's parts lie in a slot), its table of tensors, train.json, and in the last block the record, whose first word
is the step plus one, or 0 while the file is no whole snapshot. It is set to 0 before anything else changes and written last, so that whoever dies
in between leaves the other file's snapshot. Nobody reads while somebody writes: ranks are dead, or wait for each other, before others read.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from ecrl_cli.checkpoint.format.canonical_json import digest, parse
from ecrl_cli.checkpoint.format.finite import all_finite
from ecrl_cli.checkpoint.format.hashing import tensor_sha256, workers
from ecrl_cli.checkpoint.format.image import PartPlace, TensorPlace, round_up
from ecrl_cli.checkpoint.format.names import must_be_finite
from ecrl_cli.checkpoint.format.saved_state import saved_state
from ecrl_cli.checkpoint.writer.protocol import decode_parts, encode_parts
from ecrl_cli.errors import StorageError
from ecrl_cli.storage.writing import BLOCK

FILES = 2  # one is being written, the other is whole
_WORD = struct.Struct("<Q")
_RECORD = struct.Struct("<QQQQQ32s")  # the step plus one; attempt; where the table begins; its bytes; train.json's; SHA-256 of all that


class InvalidSnapshot(Exception):
    """Why a snapshot that says it is whole may not be gone on with."""


@dataclass(frozen=True)
class SnapshotContent:
    """What a snapshot holds, by hash. `sha256`: every tensor and train.json. `state_digest`: parameters, buffers and optimizer, in the definition of
    a rank's line. `state`: each component, see `saved_state`."""

    sha256: str
    state_digest: str
    state: dict[str, str]


@dataclass(frozen=True)
class Snapshot:
    """A whole one, in file `number`: the state behind `global_step`, as `attempt` had it. `memory` is that file, shared, not copied."""

    number: int
    global_step: int
    attempt: int
    tensors: tuple[TensorPlace, ...]
    train: bytes
    memory: mmap.mmap = field(repr=False)

    def content(self) -> SnapshotContent:
        """Read every byte."""
        with ThreadPoolExecutor(workers()) as pool:
            sums = pool.map(lambda place: tensor_sha256(place.spec.dtype, place.spec.shape, self._bytes(place)), self.tensors)
            found = sorted([place.spec.name, sha] for place, sha in zip(self.tensors, sums, strict=True))
        state = [pair for pair in found if not pair[0].startswith("rng.")]
        document = parse(self.train)
        saved = saved_state({pair[0]: pair[1] for pair in found}, document if isinstance(document, dict) else {})
        return SnapshotContent(digest([hashlib.sha256(self.train).hexdigest(), found]), digest(state), saved)

    def refuse_what_is_not_finite(self, setting: str = "all") -> None:
        """Unsound, naming the tensor: what checkpoint.finite=`setting` forbids in a checkpoint is forbidden here too."""
        for place in self.tensors:
            if must_be_finite(place.spec.name, setting) and not all_finite(place.spec.dtype, self._bytes(place)):
                raise InvalidSnapshot(f"{place.spec.name} holds a NaN or an infinity")

    def _bytes(self, place: TensorPlace) -> memoryview:
        return memoryview(self.memory)[place.offset : place.offset + place.spec.nbytes]


class SnapshotPair:
    """The two memory files, by descriptor. Each process that has them may map them; one at a time writes."""

    def __init__(self, fds: Sequence[int]) -> None:
        """Owns the descriptors from now on."""
        self.fds = tuple(fds)

    @classmethod
    def create(cls) -> SnapshotPair:
        """Without room yet: who knows how much is needed makes it."""
        return cls([os.memfd_create("ecrl-snapshot") for _ in range(FILES)])

    def whole(self) -> list[Snapshot]:
        """Newest first; what is torn, or was never written, is not among them."""
        found = [snapshot for number in range(len(self.fds)) if (snapshot := self._read(number))]
        return sorted(found, key=lambda snapshot: (snapshot.global_step, snapshot.attempt), reverse=True)

    def free(self) -> list[int]:
        """The files that may be written next: those without a whole snapshot, or the one with the older."""
        whole = [snapshot.number for snapshot in self.whole()]
        return [number for number in range(len(self.fds)) if number not in whole] or whole[-1:]

    def make_room(self, number: int, nbytes: int) -> int:
        """See that file `number` has `nbytes` at least; gives how many it has. It never shrinks: others may have mapped it."""
        fd = self.fds[number]
        if (size := os.fstat(fd).st_size) >= nbytes:
            return size
        self.withdraw(number)  # the record would move
        try:
            os.posix_fallocate(fd, 0, nbytes)
        except OSError as error:
            raise StorageError.of("allocate", f"a snapshot of {nbytes} bytes in memory", error) from error
        return nbytes

    def withdraw(self, number: int) -> None:
        """The file holds no whole snapshot any more."""
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
        places = tuple(place for part in decode_parts(json.loads(texts[0])) for place in part.tensors)
        return Snapshot(number, word - 1, attempt, places, texts[1], memory)


class SnapshotRecord:
    """The records of one memory file while it is mapped for writing: `view` is all of it, the image ends at `end`."""

    def __init__(self, view: memoryview, end: int, parts: tuple[PartPlace, ...]) -> None:
        self._view, self._start, self._at = view, end, len(view) - BLOCK
        self._table = table_of(parts)

    def fits(self, train: bytes) -> bool:
        return self._start + len(self._table) + len(train) <= self._at

    def withdraw(self) -> None:
        _WORD.pack_into(self._view, self._at, 0)

    def commit(self, global_step: int, attempt: int, train: bytes) -> None:
        """The image is whole: say so. The word comes last."""
        texts, word = self._table + train, global_step + 1
        self._view[self._start : self._start + len(texts)] = texts
        sha256 = _sum(word, attempt, self._start, self._table, train)
        record = _RECORD.pack(0, attempt, self._start, len(self._table), len(train), sha256)
        self._view[self._at : self._at + _RECORD.size] = record
        _WORD.pack_into(self._view, self._at, word)


def table_of(parts: tuple[PartPlace, ...]) -> bytes:
    return json.dumps(encode_parts(parts), separators=(",", ":")).encode()


def room(image: int, parts: tuple[PartPlace, ...], train: bytes) -> int:
    """Bytes of a file for an image of so many bytes; train.json may grow to twice its size."""
    return round_up(image + len(table_of(parts)) + 2 * len(train) + BLOCK, BLOCK) + BLOCK


def _sum(word: int, attempt: int, start: int, table: bytes, train: bytes) -> bytes:
    state = hashlib.sha256(struct.pack("<QQQQ", word, attempt, start, len(table)))
    state.update(table)
    state.update(train)
    return state.digest()
