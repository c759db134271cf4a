"""What a file of a stranger holds: its digest, and of `.safetensors`, `.npz` and `.npy` that of each tensor. Nothing is unpickled or loaded whole."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np

from ecrl_cli.checkpoint.format.canonical_json import parse
from ecrl_cli.checkpoint.format.hashing import new_hash, streamed
from ecrl_cli.checkpoint.format.tensor_table import all_finite, header_length
from ecrl_cli.errors import first_line
from ecrl_cli.storage.fs import Fs
from ecrl_cli.storage.safe_read import PIECE, fill, open_regular, pieces

# safetensors' dtypes: bytes per element, and as ours are called where they are floating-point numbers.
_SAFETENSORS = {
    **dict.fromkeys(("I64", "U64"), (8, "")),
    **dict.fromkeys(("I32", "U32"), (4, "")),
    **dict.fromkeys(("I16", "U16"), (2, "")),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2"), (1, "")),
    "F64": (8, "torch.float64"),
    "F32": (4, "torch.float32"),
    "F16": (2, "torch.float16"),
    "BF16": (2, "torch.bfloat16"),
    "C64": (8, "torch.complex64"),
}


@dataclass(frozen=True)
class TensorFacts:
    """`digest`: over dtype, shape, order and bytes. `finite`: False if it holds NaN or infinity."""

    dtype: str
    shape: tuple[int, ...]
    digest: str
    finite: bool = True


@dataclass(frozen=True)
class FileFacts:
    """`digest`: over the file's bytes. `problem`: why its tensors cannot be read, or empty."""

    bytes: int
    digest: str
    tensors: dict[str, TensorFacts] = field(default_factory=dict)
    problem: str = ""


def examine(fs: Fs, folder: int, name: str, algorithm: str, max_bytes: int) -> FileFacts:
    """The facts of the regular file `name` in the open `folder`; RefusedFile or StorageError if it cannot be read as one. `max_bytes`: how much its
    tensors may have, unpacked.
    """
    fd, size = open_regular(fs, folder, name, trust_owner=True)
    try:
        whole = streamed(algorithm, b"", pieces(fs, fd, 0, size))
        try:
            if name.endswith(".safetensors"):
                return FileFacts(size, whole, dict(_of_safetensors(fs, fd, size, algorithm)))
            if name.endswith((".npz", ".npy")):
                with open(fd, "rb", closefd=False) as file:
                    found = _of_npz(file, algorithm, max_bytes) if name.endswith(".npz") else iter([("", _array(file, algorithm, max_bytes)[0])])
                    return FileFacts(size, whole, dict(found))
        except Exception as error:  # zipfile, zlib and numpy raise many types for damaged files
            return FileFacts(size, whole, problem=first_line(error, 160))
        return FileFacts(size, whole)
    finally:
        fs.close(fd)


def _of_safetensors(fs: Fs, fd: int, size: int, algorithm: str) -> Iterator[tuple[str, TensorFacts]]:
    if size < 8:
        raise ValueError("no safetensors file")
    length = header_length(bytes(fill(fs, fd, memoryview(bytearray(8)), 0)), size)
    header = parse(bytes(fill(fs, fd, memoryview(bytearray(length)), 8)))
    if not isinstance(header, dict):
        raise ValueError("a header that is no object")
    end = start = 8 + length
    spans = sorted((*_span(name, entry), name) for name, entry in header.items() if name != "__metadata__")
    for begin, stop, name in spans:
        if start + begin != end:
            raise ValueError(f"a gap or an overlap before {name[:80]!r}")
        end = start + stop
    if end != size:
        raise ValueError(f"tensors end at byte {end} of {size}")
    for begin, stop, name in spans:
        entry = header[name]
        dtype, shape = str(entry["dtype"]), tuple(entry["shape"])
        state, finite = new_hash(algorithm), True
        state.update(f"{dtype}{shape}".encode())
        for piece in pieces(fs, fd, start + begin, start + stop):
            state.update(piece)
            finite = finite and all_finite(_SAFETENSORS.get(dtype, (0, ""))[1], piece)
        yield name, TensorFacts(dtype, shape, state.hexdigest(), finite)


def _span(name: str, entry: Any) -> tuple[int, int]:
    sound = isinstance(entry, dict) and entry.keys() == {"dtype", "shape", "data_offsets"} and isinstance(entry["dtype"], str)
    if not sound or not all(isinstance(entry[key], list) for key in ("shape", "data_offsets")):
        raise ValueError(f"entry of {name[:80]!r}")
    numbers = [*entry["shape"], *entry["data_offsets"]]
    if len(entry["data_offsets"]) != 2 or not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError(f"shape or offsets of {name[:80]!r}")
    begin, end = entry["data_offsets"]
    width = _SAFETENSORS.get(entry["dtype"], (0, ""))[0]
    if end < begin or (width and end - begin != width * math.prod(entry["shape"])):
        raise ValueError(f"size of {name[:80]!r}")
    return begin, end


def _of_npz(file: IO[bytes], algorithm: str, max_bytes: int) -> Iterator[tuple[str, TensorFacts]]:
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        if len(set(names)) != len(names):
            raise ValueError("two entries of one name")
        left = max_bytes
        for name in names:
            with archive.open(name) as member:
                facts, size = _array(member, algorithm, left)
            left -= size
            yield name.removesuffix(".npy"), facts


def _array(file: IO[bytes], algorithm: str, most: int) -> tuple[TensorFacts, int]:
    """One array in numpy's format and its bytes, read piece by piece: what a header promises is not allocated; at most `most` are unpacked."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("holds Python objects, which only unpickling would read")
    left = size = math.prod(shape) * dtype.itemsize
    if left > most:
        raise ValueError(f"{left} bytes unpacked, at most {most} are read")
    kind = dtype.str if dtype.names is None else str(dtype)
    state, finite = new_hash(algorithm), True
    state.update(f"{kind}{shape}{' F' * fortran}".encode())
    width = max(1, dtype.itemsize)
    while left:
        piece = _exactly(file, min(max(1, PIECE // width) * width, left))
        state.update(piece)
        finite = finite and (dtype.kind not in "fc" or bool(np.isfinite(np.frombuffer(piece, dtype=dtype)).all()))
        left -= len(piece)
    if file.read(1):
        raise ValueError("bytes behind its end")
    return TensorFacts(kind + " F" * fortran, tuple(int(number) for number in shape), state.hexdigest(), finite), size


def _exactly(file: IO[bytes], count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        got = file.read(count - len(found))
        if not got:
            raise ValueError(f"ends {count - len(found)} bytes early")
        found += got
    return bytes(found)
