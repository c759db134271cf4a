"""Finds a single flipped bit. CRC-32 is linear: the checksums of two texts of equal length differ by a value (the syndrome) that depends
only on the differing bits, and for one bit only on its distance from the end.

A difference b in the byte k bytes before the end has the syndrome T[b] advanced over k zero bytes (T: the table of the reflected polynomial).
Walking back one zero byte at a time until T[1 << bit] appears finds the bit; x^m is different for each m below 2^32 - 1, so it is the only one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

_POLYNOMIAL = 0xEDB88320  # of zlib.crc32, bits reflected


@dataclass(frozen=True)
class BitFlip:
    """A flipped bit: byte `offset` of its file, `bit` 0 being the lowest."""

    offset: int
    bit: int


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = [_entry(byte) for byte in range(256)]
_BY_TOP = {entry >> 24: byte for byte, entry in enumerate(_TABLE)}
_SINGLE = {_TABLE[1 << bit]: bit for bit in range(8)}


def single_flip(is_crc: int, should_be: int, length: int) -> BitFlip | None:
    """The one bit whose flip turns the CRC `should_be` into `is_crc` in a text of `length` bytes; None if there is none."""
    syndrome = is_crc ^ should_be
    for from_end in range(length):
        bit = _SINGLE.get(syndrome)
        if bit is not None:
            return BitFlip(length - 1 - from_end, bit)
        low = _BY_TOP[syndrome >> 24]
        syndrome = ((syndrome ^ _TABLE[low]) << 8) & 0xFFFFFFFF | low
    return None


def flipped(data: bytes, flip: BitFlip) -> bytes:
    return data[: flip.offset] + bytes([data[flip.offset] ^ 1 << flip.bit]) + data[flip.offset + 1 :]


def search_by_hash(data: bytes, sha256: str) -> BitFlip | None:
    """The one bit of `data` whose flip gives it this SHA-256, or None. Hashes about 4 n^2 bytes for n bytes: for small texts only."""
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
