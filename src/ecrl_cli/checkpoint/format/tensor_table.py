"""The places of a part's tensors, in either format: the file's own table, untrusted, accepted only
if it agrees with the manifest. And whether their bytes hold NaN or infinity. Torch-free.
"""

from __future__ import annotations

from typing import Any

from ecrl_cli.checkpoint.format.canonical_json import parse
from ecrl_cli.checkpoint.format.image import DTYPES, TensorPlace, TensorSpec
from ecrl_cli.checkpoint.format.manifest import PartEntry
from ecrl_cli.checkpoint.format.torch_file import Read, torch_places
from ecrl_cli.errors import plural
from ecrl_cli.storage.fs import Buffer

TENSOR_FILES = (".safetensors", ".pt")

MAX_HEADER = 100 * 2**20  # the cap of the safetensors library

_EXPONENT_BFLOAT16 = 0x7F80  # all ones: NaN or an infinity
_NUMPY = {
    "torch.float64": "<f8",
    "torch.float32": "<f4",
    "torch.float16": "<f2",
    "torch.complex64": "<f4",
}


def tensor_table(read: Read, name: str, entry: PartEntry, train: bytes) -> list[TensorPlace]:
    """The tensors' places in file order. ValueError unless the table of file `name` agrees with the
    manifest's `entry`. `train`: train.json.
    """
    if name.endswith(".pt"):
        return torch_places(read, entry, train)
    if entry.bytes < 8:
        raise ValueError(f"{name} is no safetensors file")
    length = header_length(read(0, 8), entry.bytes)
    longest = 4096 + sum(
        6 * len(tensor) + 24 * len(each.shape) + 160 for tensor, each in entry.tensors.items()
    )
    if length > longest:  # more than a header for these tensors can have: not read
        raise ValueError(
            f"{name} has a header of {length} bytes for {plural(len(entry.tensors), 'tensor')}"
        )
    return places(read(8, length), entry)


def header_length(first: bytes, file_bytes: int) -> int:
    """The JSON's length from the first 8 bytes; ValueError if it is impossible for a file of
    `file_bytes`.
    """
    length = int.from_bytes(first, "little")
    if len(first) != 8 or length > MAX_HEADER or 8 + length > file_bytes:
        raise ValueError(f"a header of {length} bytes in a file of {file_bytes}")
    return length


def places(header: bytes, part: PartEntry) -> list[TensorPlace]:
    """The place of each tensor in the file, in file order. ValueError unless header, manifest and
    file size agree exactly.
    """
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
    if not (
        isinstance(offsets, list)
        and len(offsets) == 2
        and all(type(number) is int and number >= 0 for number in offsets)
    ):
        raise ValueError(f"offsets of {name[:80]!r}")
    if offsets[1] - offsets[0] != TensorSpec(name, entry.dtype, entry.shape).nbytes:
        raise ValueError(f"size of {name[:80]!r}")
    return offsets[0], offsets[1], name


def all_finite(dtype: str, data: Buffer) -> bool:
    """False if a floating-point `dtype` holds a NaN or an infinity; `data` is a whole number of
    little-endian elements.
    """
    import numpy as np  # takes 0.1 s, and not every process checks numbers

    if dtype == "torch.bfloat16":
        words = np.frombuffer(data, dtype="<u2")
        return not bool(((words & _EXPONENT_BFLOAT16) == _EXPONENT_BFLOAT16).any())
    if dtype not in _NUMPY:
        return True
    return bool(np.isfinite(np.frombuffer(data, dtype=_NUMPY[dtype])).all())
