"""Reads an untrusted safetensors header: the place of each tensor, accepted only if it agrees with the manifest."""

from __future__ import annotations

from typing import Any

from ecrl_cli.checkpoint.format.canonical_json import parse
from ecrl_cli.checkpoint.format.image import DTYPES, TensorPlace, TensorSpec
from ecrl_cli.checkpoint.format.manifest import PartEntry

MAX_HEADER = 100 * 2**20  # the cap of the safetensors library


def header_length(first: bytes, file_bytes: int) -> int:
    """The JSON's length from the first 8 bytes; ValueError if it is impossible for a file of `file_bytes`."""
    length = int.from_bytes(first, "little")
    if len(first) != 8 or length > MAX_HEADER or 8 + length > file_bytes:
        raise ValueError(f"a header of {length} bytes in a file of {file_bytes}")
    return length


def longest_header(part: PartEntry) -> int:
    """Most bytes that a header for the tensors of `part` can have: a longer one is not read."""
    return 4096 + sum(6 * len(name) + 24 * len(entry.shape) + 160 for name, entry in part.tensors.items())


def places(header: bytes, part: PartEntry) -> list[TensorPlace]:
    """The place of each tensor in the file, in file order. ValueError unless header, manifest and file size agree exactly."""
    value = parse(header)
    if not isinstance(value, dict) or value.keys() != part.tensors.keys():
        raise ValueError("header and manifest name different tensors")
    start = 8 + len(header)
    spans = sorted(_span(name, item, part) for name, item in value.items())
    found, offset = [], 0
    for begin, end, name in spans:
        if begin != offset:
            raise ValueError(f"a gap or an overlap before {name[:80]!r}")
        entry = part.tensors[name]
        found.append(TensorPlace(TensorSpec(name, entry.dtype, entry.shape), start + begin))
        offset = end
    if start + offset != part.bytes:
        raise ValueError(f"tensors end at byte {start + offset} of {part.bytes}")
    return found


def _span(name: str, item: Any, part: PartEntry) -> tuple[int, int, str]:
    entry = part.tensors[name]
    if entry.dtype not in DTYPES:
        raise ValueError(f"dtype {entry.dtype[:40]!r}")
    if not isinstance(item, dict) or item.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"entry of {name[:80]!r}")
    if item["dtype"] != DTYPES[entry.dtype][0] or item["shape"] != list(entry.shape):
        raise ValueError(f"dtype or shape of {name[:80]!r} differs from the manifest")
    offsets = item["data_offsets"]
    if not (isinstance(offsets, list) and len(offsets) == 2 and all(type(number) is int and number >= 0 for number in offsets)):
        raise ValueError(f"offsets of {name[:80]!r}")
    if offsets[1] - offsets[0] != TensorSpec(name, entry.dtype, entry.shape).nbytes:
        raise ValueError(f"size of {name[:80]!r}")
    return offsets[0], offsets[1], name
