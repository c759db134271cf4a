"""Storage faults as functions of bytes and a random generator. A fault may leave the bytes unchanged; callers must check."""

from __future__ import annotations

import random
from collections.abc import Callable

from ecrl_cli.storage.writing import BLOCK

Fault = Callable[[bytes, random.Random], bytes]


def bitflip(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(8 * len(data))
    return put(data, place // 8, bytes([data[place // 8] ^ 1 << place % 8]))


def zerorange(data: bytes, rng: random.Random) -> bytes:
    """Zero a range of one byte up to a block, with log-uniform length."""
    start, size = _range(data, rng)
    return put(data, start, bytes(size))


def garbage(data: bytes, rng: random.Random) -> bytes:
    start, size = _range(data, rng)
    return put(data, start, rng.randbytes(size))


def truncate(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def extend(data: bytes, rng: random.Random) -> bytes:
    return data + (bytes if rng.random() < 0.5 else rng.randbytes)(1 + rng.randrange(BLOCK))


def duplicate_block(data: bytes, rng: random.Random) -> bytes:
    """Write a block over another one."""
    source, target = _two_blocks(data, rng)
    return put(data, target, data[source : source + BLOCK])[: len(data)]


def swap_blocks(data: bytes, rng: random.Random) -> bytes:
    first, second = sorted(_two_blocks(data, rng))
    size = min(BLOCK, len(data) - second)
    return put(put(data, first, data[second : second + size]), second, data[first : first + size])


PUBLISHED: dict[str, Fault] = {"bitflip": bitflip, "zerorange": zerorange, "truncate": truncate}
IN_A_FILE: dict[str, Fault] = PUBLISHED | {"garbage": garbage, "extend": extend, "duplicate_block": duplicate_block, "swap_blocks": swap_blocks}
SWAP_PARTS = "swap_parts"
SMALLEST = {"duplicate_block": 2 * BLOCK, "swap_blocks": 2 * BLOCK}  # minimum file size for the fault, in bytes


def zeros_over_zeros(data: bytes, rng: random.Random) -> bytes:
    """Zero a range that is zero already: the published study counted one as missed; it must be accepted."""
    places = [start for start in range(len(data) - 2) if data[start : start + 3] == bytes(3)]
    return put(data, rng.choice(places), bytes(3)) if places else data


def put(data: bytes, start: int, piece: bytes) -> bytes:
    return data[:start] + piece + data[start + len(piece) :]


def _range(data: bytes, rng: random.Random) -> tuple[int, int]:
    start = rng.randrange(len(data))
    return start, min(int(2 ** rng.uniform(0, 12)), len(data) - start)


def _two_blocks(data: bytes, rng: random.Random) -> tuple[int, int]:
    first, second = rng.sample(range(-(-len(data) // BLOCK)), 2)
    return first * BLOCK, second * BLOCK
