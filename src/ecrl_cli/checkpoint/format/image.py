"""A checkpoint in memory, laid out as its files: the place of each part and each tensor.
Torch-free.

A safetensors part is its header (8 bytes of length, JSON, spaces up to ALIGN) and then the tensors
without gaps, widest dtype first, so that each is aligned. Every part starts at a multiple of BLOCK,
so the writer streams it to disk unchanged.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from ecrl_cli.storage.writing import BLOCK

ALIGN = 64

# torch's spelling -> safetensors' spelling, bytes per element
DTYPES = {
    "torch.float64": ("F64", 8),
    "torch.int64": ("I64", 8),
    "torch.complex64": ("C64", 8),
    "torch.float32": ("F32", 4),
    "torch.int32": ("I32", 4),
    "torch.float16": ("F16", 2),
    "torch.bfloat16": ("BF16", 2),
    "torch.int16": ("I16", 2),
    "torch.int8": ("I8", 1),
    "torch.uint8": ("U8", 1),
    "torch.bool": ("BOOL", 1),
}


@dataclass(frozen=True)
class TensorSpec:
    """Name, dtype (as torch spells it) and shape of a tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype][1]


@dataclass(frozen=True)
class TensorPlace:
    """A tensor's place: `offset` in the image, in bytes."""

    spec: TensorSpec
    offset: int


@dataclass(frozen=True)
class PartPlace:
    """A file's place in the image. With format=torch the tensors lie outside of the part's own
    bytes.
    """

    name: str
    offset: int
    nbytes: int
    tensors: tuple[TensorPlace, ...]


@dataclass(frozen=True)
class ImagePlan:
    """All parts, the image's size in bytes, and the headers with their offsets."""

    parts: tuple[PartPlace, ...]
    nbytes: int
    headers: tuple[tuple[int, bytes], ...]

    @property
    def tensors(self) -> tuple[TensorPlace, ...]:
        return tuple(place for part in self.parts for place in part.tensors)


@dataclass(frozen=True)
class CheckpointMeta:
    """Run, step, position, seed and world size: what the manifest says besides the parts."""

    run_id: str
    global_step: int
    epoch: int
    cursor_step: int
    seed: int
    world_size: int


@dataclass(frozen=True)
class CheckpointImage:
    """A finished, immutable capture. `documents`: the small JSON parts by file name.
    `state_digest`: what rank 0 logged of this state, by which it is checked before it is committed;
    empty if it logged nothing.
    """

    stamp: CheckpointMeta
    memory: memoryview
    parts: tuple[PartPlace, ...]
    documents: dict[str, bytes]
    state_digest: str = ""

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts) + sum(map(len, self.documents.values()))


def in_file_order(specs: list[TensorSpec]) -> list[TensorSpec]:
    """Tensors in the order of their part's file: widest dtype first, then by name."""
    return sorted(specs, key=lambda spec: (-DTYPES[spec.dtype][1], spec.name))


def plan_image(parts: dict[str, list[TensorSpec]]) -> ImagePlan:
    """Lay out safetensors files with these tensors, files in the given order."""
    places, headers, offset = [], [], 0
    for name, specs in parts.items():
        ordered = in_file_order(specs)
        header = header_of(ordered)
        start = offset + len(header)
        tensors = []
        for spec in ordered:
            tensors.append(TensorPlace(spec, start))
            start += spec.nbytes
        places.append(PartPlace(name, offset, start - offset, tuple(tensors)))
        headers.append((offset, header))
        offset = round_up(start, BLOCK)
    return ImagePlan(tuple(places), offset, tuple(headers))


def header_of(specs: list[TensorSpec]) -> bytes:
    """The safetensors header of `specs` in this order, including its length field, padded to a
    multiple of ALIGN.
    """
    entries, offset = {}, 0
    for spec in specs:
        entries[spec.name] = {
            "dtype": DTYPES[spec.dtype][0],
            "shape": list(spec.shape),
            "data_offsets": [offset, offset + spec.nbytes],
        }
        offset += spec.nbytes
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text = text.ljust(round_up(8 + len(text), ALIGN) - 8)
    return len(text).to_bytes(8, "little") + text


def round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def encode_parts(parts: tuple[PartPlace, ...]) -> list[Any]:
    """The table of parts: [name, offset, bytes, [[tensor, dtype, shape, offset], ...]]."""
    return [
        [
            part.name,
            part.offset,
            part.nbytes,
            [
                [place.spec.name, place.spec.dtype, place.spec.shape, place.offset]
                for place in part.tensors
            ],
        ]
        for part in parts
    ]


def decode_parts(value: list[Any]) -> tuple[PartPlace, ...]:
    return tuple(
        PartPlace(
            name,
            offset,
            nbytes,
            tuple(
                TensorPlace(TensorSpec(tensor, dtype, tuple(shape)), at)
                for tensor, dtype, shape, at in tensors
            ),
        )
        for name, offset, nbytes, tensors in value
    )
