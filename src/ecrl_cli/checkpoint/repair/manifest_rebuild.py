"""Rebuilds a manifest's entries from the parts, to repair a manifest that is too large to try every bit.

The result is not trusted: the SHA-256 of the rebuilt manifest must match the one in COMMIT.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from typing import Any

from ecrl_cli.checkpoint.format.canonical_json import canonical_json, parse
from ecrl_cli.checkpoint.format.hashing import document_entry, tensor_prefix
from ecrl_cli.checkpoint.format.image import DTYPES, TensorSpec
from ecrl_cli.checkpoint.format.manifest import PartEntry, TensorEntry
from ecrl_cli.checkpoint.format.names import CHUNK
from ecrl_cli.checkpoint.format.safetensors_header import header_length
from ecrl_cli.checkpoint.repair.crc_bit_flip import BitFlip, flipped
from ecrl_cli.config.codec import encode
from ecrl_cli.storage.fs import Fs
from ecrl_cli.storage.safe_read import fill, pieces, read_small

MAX_DIFFERENCES = 512  # bits: more differences are not bit flips
MAX_HASHED = 4 * 2**30  # most bytes that a search may hash: some seconds
_OPEN, _CLOSE = b'"parts":', b',"run_id":'  # around the parts in a canonical manifest
_TORCH = {short: dtype for dtype, (short, _) in DTYPES.items()}

Entries = Callable[[], dict[str, PartEntry]]


def rebuild_manifest(data: bytes, sha256: str, entries: Entries) -> tuple[BitFlip, ...]:
    """The flipped bits of the manifest `data`: those where its parts differ from `entries`, and at most one outside of them.
    Empty if undoing them does not give `sha256`; raises what `entries` raises if the parts cannot be read."""
    begin, end = data.find(_OPEN) + len(_OPEN), data.rfind(_CLOSE)
    if begin < len(_OPEN) or end < begin:
        return ()
    made = data[:begin] + canonical_json(encode(entries())) + data[end:]
    if len(made) != len(data):
        return ()
    if hashlib.sha256(made).hexdigest() != sha256:
        if (begin + len(made) - end) * 8 * len(made) > MAX_HASHED:
            return ()
        outside = (BitFlip(offset, bit) for offset in (*range(begin), *range(end, len(made))) for bit in range(8))
        flip = next((flip for flip in outside if hashlib.sha256(flipped(made, flip)).hexdigest() == sha256), None)
        if flip is None:
            return ()
        made = flipped(made, flip)
    changed = [offset for offset, (one, other) in enumerate(zip(data, made, strict=True)) if one != other]
    flips = [BitFlip(offset, bit) for offset in changed[:MAX_DIFFERENCES] for bit in range(8) if (data[offset] ^ made[offset]) >> bit & 1]
    return tuple(flips) if len(changed) <= MAX_DIFFERENCES >= len(flips) else ()


def rebuild_entry(fs: Fs, fd: int, size: int, name: str, limit: int) -> PartEntry:
    """The manifest entry of an open part as it is now. ValueError if its tensors cannot be read."""
    if not name.endswith(".safetensors"):
        if name.endswith(".pt"):
            raise ValueError("the tensors of a torch file are not read here")
        return document_entry(read_small(fs, fd, size, limit))
    if size > limit:
        raise ValueError(f"{size} bytes, at most {limit} are read")
    state, sums = hashlib.sha256(), []
    for piece in pieces(fs, fd, 0, size):
        state.update(piece)
        sums += [zlib.crc32(piece[start : start + CHUNK]) for start in range(0, len(piece), CHUNK)]
    return PartEntry(size, state.hexdigest(), tuple(sums), _tensors(fs, fd, size))


def _tensors(fs: Fs, fd: int, size: int) -> dict[str, TensorEntry]:
    length = header_length(bytes(fill(fs, fd, memoryview(bytearray(8)), 0)), size)
    header = parse(bytes(fill(fs, fd, memoryview(bytearray(length)), 8)))
    if not isinstance(header, dict):
        raise ValueError("not an object")
    specs = {name: _spec(name, item) for name, item in header.items()}
    if sum(end - begin for _, begin, end in specs.values()) > size:
        raise ValueError("tensors overlap")  # and would be hashed many times
    return {name: _tensor(fs, fd, spec, 8 + length + begin, 8 + length + end) for name, (spec, begin, end) in specs.items()}


def _spec(name: str, item: Any) -> tuple[TensorSpec, int, int]:
    try:
        begin, end = (int(number) for number in item["data_offsets"])
        spec = TensorSpec(name, _TORCH[item["dtype"]], tuple(int(number) for number in item["shape"]))
    except (KeyError, TypeError) as error:
        raise ValueError("an entry of the header") from error
    if not 0 <= begin <= end:
        raise ValueError("offsets in the header")
    return spec, begin, end


def _tensor(fs: Fs, fd: int, spec: TensorSpec, start: int, end: int) -> TensorEntry:
    state = hashlib.sha256(tensor_prefix(spec.dtype, spec.shape))
    for piece in pieces(fs, fd, start, end):
        state.update(piece)
    return TensorEntry(spec.dtype, spec.shape, state.hexdigest())
