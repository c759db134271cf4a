"""Locates the damage in one part: chunks by their CRC, flipped bits by the CRC's syndrome,
confirmed by the part's digest.

A CRC is linear: the checksums of two texts of equal length differ by a value (the syndrome) that
depends only on the differing bits, and for one bit only on its distance from the end. A difference
b in the byte k bytes before the end has the syndrome T[b] advanced over k zero bytes (T: the table
of the reflected polynomial). Walking back one zero byte at a time until T[1 << bit] appears finds
the bit; x^m is different for each m below 2^31 - 1, so it is the only one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache

from ecrl_cli.checkpoint.format.hashing import (
    CHUNK_SUMS,
    TITLES,
    ChunkSum,
    Leaf,
    leaves,
    root,
    streamed,
)
from ecrl_cli.checkpoint.format.image import TensorPlace
from ecrl_cli.checkpoint.format.manifest import Manifest, PartEntry
from ecrl_cli.checkpoint.format.names import CHUNK, FORMAT_VERSION
from ecrl_cli.checkpoint.format.tensor_table import header_length, places
from ecrl_cli.storage.fs import Buffer, Fs
from ecrl_cli.storage.safe_read import RefusedFile, fill, pieces

# most damaged chunks that are searched for one flipped bit each: more are not bit flips
MAX_FLIPS = 64
NAMED = 3  # tensors, ranges and bits that a text lists; the rest is counted

_ZEROS = re.compile(rb"\0{32,}")


@dataclass(frozen=True)
class BitFlip:
    """A flipped bit: byte `offset` of its file, `bit` 0 being the lowest."""

    offset: int
    bit: int


@cache
def _table(polynomial: int) -> list[int]:
    """The CRC's table of 256 entries for a reflected `polynomial`."""
    found = list(range(256))
    for _ in range(8):
        found = [each >> 1 ^ (polynomial if each & 1 else 0) for each in found]
    return found


def single_flip(is_crc: int, should_be: int, length: int, polynomial: int) -> BitFlip | None:
    """The one bit whose flip turns the CRC `should_be` into `is_crc` in a text of `length` bytes;
    None if there is none.
    """
    table = _table(polynomial)
    by_top = {entry >> 24: byte for byte, entry in enumerate(table)}
    single = {table[1 << bit]: bit for bit in range(8)}
    difference = is_crc ^ should_be
    for from_end in range(length):
        bit = single.get(difference)
        if bit is not None:
            return BitFlip(length - 1 - from_end, bit)
        low = by_top[difference >> 24]
        difference = ((difference ^ table[low]) << 8) & 0xFFFFFFFF | low
    return None


def flipped(data: bytes, flip: BitFlip) -> bytes:
    return (
        data[: flip.offset] + bytes([data[flip.offset] ^ 1 << flip.bit]) + data[flip.offset + 1 :]
    )


def search_by_hash(data: bytes, sha256: str) -> BitFlip | None:
    """The one bit of `data` whose flip gives it this SHA-256, or None. Hashes about 4 n^2 bytes for
    n bytes: for small texts only.
    """
    before = hashlib.sha256()
    for offset, byte in enumerate(data):
        behind = data[offset + 1 :]
        for bit in range(8):
            state = before.copy()
            state.update(bytes([byte ^ 1 << bit]))
            state.update(behind)
            if state.hexdigest() == sha256:
                return BitFlip(offset, bit)
        before.update(data[offset : offset + 1])
    return None


def search(data: bytes, is_right: Callable[[bytes], bool]) -> BitFlip | None:
    """The first bit of `data` whose flip `is_right` accepts, or None."""
    flips = (BitFlip(offset, bit) for offset in range(len(data)) for bit in range(8))
    return next((flip for flip in flips if is_right(flipped(data, flip))), None)


@dataclass(frozen=True)
class FileDamage:
    """The damage of one file. If `repairable`, undoing `flips` repairs it: the corrected bytes
    match their recorded hash.
    """

    file: str
    text: str
    chunks: tuple[int, ...] = ()
    flips: tuple[BitFlip, ...] = ()
    tensors: tuple[str, ...] = ()
    repairable: bool = False


@dataclass
class _Seen:
    """One pass over a part: the damaged chunks with their actual CRCs, the longest run of zeros in
    them.
    """

    bad: dict[int, int] = field(default_factory=dict)
    run: tuple[int, int] = (0, 0)
    longest: tuple[int, int] = (0, 0)

    def zeros(self, chunk: bytes, start: int) -> None:
        for match in _ZEROS.finditer(chunk):
            begin, end = start + match.start(), start + match.end()
            self.run = (self.run[0], end) if self.run[1] == begin else (begin, end)
            self.longest = max(self.longest, self.run, key=lambda run: run[1] - run[0])


def find_damage(fs: Fs, fd: int, size: int, name: str, manifest: Manifest) -> FileDamage | None:
    """The damage of the open part `name`, which has `size` bytes; None if there is none. Raises the
    errors of reading.
    """
    entry, sums = manifest.parts[name], CHUNK_SUMS[manifest.schema_version]
    whole = entry.bytes if size >= entry.bytes else size // CHUNK * CHUNK
    seen = _look(fs, fd, whole, entry, sums)
    matches = whole == entry.bytes and _matches(fs, fd, name, manifest)
    if matches and size == entry.bytes:
        return None
    facts = [_size_fact(size, entry)] if size != entry.bytes else []
    if matches:
        return FileDamage(
            name,
            f"{facts[0]}; the first {entry.bytes} match the {TITLES[manifest.digest]}",
            repairable=True,
        )
    where = _Where(
        entry,
        _places(fs, fd, name, entry) if name.endswith(".safetensors") else [],
        TITLES[manifest.digest],
    )
    chunks, flips = tuple(sorted(seen.bad)), _flips(seen.bad, entry, sums)
    if flips and whole == entry.bytes and _matches(fs, fd, name, manifest, flips):
        hit = where.tensors([(flip.offset, flip.offset + 1) for flip in flips])
        return FileDamage(
            name, "; ".join([*facts, *where.flips(flips)]), chunks, flips, hit, repairable=True
        )
    facts += where.chunks(chunks) if chunks else []
    if seen.longest[1]:
        facts.append(f"bytes {seen.longest[0]} to {seen.longest[1] - 1} read as zero")
    return FileDamage(
        name,
        "; ".join(facts) or "no chunk sum sees the damage",
        chunks,
        (),
        where.tensors(where.bytes_of(chunks)),
    )


def corrected(piece: memoryview, start: int, flips: tuple[BitFlip, ...]) -> bytes | memoryview:
    """`piece`, which begins at byte `start` of its file, with the flips inside it undone."""
    inside = [flip for flip in flips if start <= flip.offset < start + len(piece)]
    if not inside:
        return piece
    data = bytes(piece)
    for flip in inside:
        data = flipped(data, BitFlip(flip.offset - start, flip.bit))
    return data


def _look(fs: Fs, fd: int, whole: int, entry: PartEntry, sums: ChunkSum) -> _Seen:
    seen, index = _Seen(), 0
    for piece in pieces(fs, fd, 0, whole):
        for start in range(0, len(piece), CHUNK):
            chunk = piece[start : start + CHUNK]
            crc = sums.of(chunk)
            if crc != entry.chunk_sums[index]:
                seen.bad[index] = crc
                seen.zeros(bytes(chunk), index * CHUNK)
            index += 1
    return seen


def _flips(bad: dict[int, int], entry: PartEntry, sums: ChunkSum) -> tuple[BitFlip, ...]:
    """One flipped bit for each damaged chunk; empty unless every chunk has one."""
    if len(bad) > MAX_FLIPS:
        return ()
    found = []
    for index, crc in bad.items():
        flip = single_flip(
            crc, entry.chunk_sums[index], min(CHUNK, entry.bytes - index * CHUNK), sums.polynomial
        )
        if flip is None:
            return ()
        found.append(BitFlip(index * CHUNK + flip.offset, flip.bit))
    return tuple(found)


def _matches(
    fs: Fs, fd: int, name: str, manifest: Manifest, flips: tuple[BitFlip, ...] = ()
) -> bool:
    """Whether the part has its digest once `flips` are undone."""
    entry = manifest.parts[name]

    def read(leaf: Leaf) -> Iterator[Buffer]:
        start = leaf.start
        for piece in pieces(fs, fd, leaf.start, leaf.end):
            yield corrected(piece, start, flips)
            start += len(piece)

    with suppress(ValueError):
        tree = leaves(name, entry, manifest.schema_version)
        return (
            root(
                manifest.digest,
                [streamed(manifest.digest, leaf.prefix, read(leaf)) for leaf in tree],
            )
            == entry.digest
        )
    return False


def _size_fact(size: int, entry: PartEntry) -> str:
    if size < entry.bytes:
        return f"ends {entry.bytes - size} bytes early, at byte {size}"
    return f"{size - entry.bytes} bytes too long"


class _Where:
    """Describes positions in a part in words."""

    def __init__(self, entry: PartEntry, laid_out: list[TensorPlace], named: str) -> None:
        self.entry, self.laid_out, self.named = entry, laid_out, named

    def flips(self, flips: tuple[BitFlip, ...]) -> list[str]:
        of = len(self.entry.chunk_sums)
        texts = [
            f"chunk {flip.offset // CHUNK} of {of}, byte {flip.offset} bit {flip.bit}"
            f" flipped{self.inside([(flip.offset, flip.offset + 1)])}"
            for flip in flips[:NAMED]
        ]
        more = [f"and {len(flips) - NAMED} more flipped bits"] if len(flips) > NAMED else []
        return [*texts, *more, f"the corrected bytes match the {self.named}"]

    def chunks(self, chunks: tuple[int, ...]) -> list[str]:
        spans, ranges = list(_spans(chunks)), self.bytes_of(chunks)
        texts = [
            f"{first}" if first == last else f"{first} to {last}" for first, last in spans[:NAMED]
        ]
        more = f" and {len(spans) - NAMED} more ranges" if len(spans) > NAMED else ""
        word = "chunk" if len(chunks) == 1 else "chunks"
        between = f"between bytes {ranges[0][0]} and {ranges[-1][1] - 1}"
        return [
            f"{word} {', '.join(texts)}{more} of {len(self.entry.chunk_sums)} damaged,"
            f" {between}{self.inside(ranges)}"
        ]

    def bytes_of(self, chunks: tuple[int, ...]) -> list[tuple[int, int]]:
        return [
            (first * CHUNK, min(self.entry.bytes, (last + 1) * CHUNK))
            for first, last in _spans(chunks)
        ]

    def inside(self, ranges: list[tuple[int, int]]) -> str:
        names = self.tensors(ranges)
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        return f" (in {', '.join(name[:80] for name in names[:NAMED])}{more})" if names else ""

    def tensors(self, ranges: list[tuple[int, int]]) -> tuple[str, ...]:
        """The parts of the file that the byte `ranges` (sorted, disjoint) hit: "the header",
        tensors in file order; empty if the layout is unknown.
        """
        if not self.laid_out or not ranges:
            return ()
        found, at = ["the header"] if ranges[0][0] < self.laid_out[0].offset else [], 0
        for place in self.laid_out:
            while at < len(ranges) and ranges[at][1] <= place.offset:
                at += 1
            if at < len(ranges) and ranges[at][0] < place.offset + place.spec.nbytes:
                found.append(place.spec.name)
        return tuple(found)


def _spans(chunks: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """First and last chunk of each contiguous range."""
    begins = [
        chunk
        for number, chunk in enumerate(chunks)
        if number == 0 or chunks[number - 1] != chunk - 1
    ]
    ends = [
        chunk
        for number, chunk in enumerate(chunks)
        if number == len(chunks) - 1 or chunks[number + 1] != chunk + 1
    ]
    return zip(begins, ends, strict=True)


def _places(fs: Fs, fd: int, name: str, entry: PartEntry) -> list[TensorPlace]:
    """The tensors' places: from the header if it agrees with the manifest, else as the manifest
    alone implies.
    """
    try:
        length = header_length(bytes(fill(fs, fd, memoryview(bytearray(8)), 0)), entry.bytes)
        return places(bytes(fill(fs, fd, memoryview(bytearray(length)), 8)), entry)
    except (ValueError, RecursionError, RefusedFile):
        with suppress(ValueError):
            return [leaf.place for leaf in leaves(name, entry, FORMAT_VERSION) if leaf.place]
        return []
