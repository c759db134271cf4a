"""Reads a folder of torch.distributed.checkpoint (DCP) without torch, and without executing its
`.metadata`, which is a pickle.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ecrl_cli.audit.inert_pickle import Instance, Named, Pairs, read_pickle
from ecrl_cli.audit.torch_save_file import WIDTHS, Tensor, TorchSaveFile
from ecrl_cli.checkpoint.format.torch_file import Read
from ecrl_cli.records.safe_read import opened, read_whole

METADATA = ".metadata"
MAX_METADATA = 64 * 2**20
MAX_ASSEMBLED = 2**31  # bytes of a tensor that is in parts


@dataclass(frozen=True)
class Chunk:
    """A part of an entry: where in the full tensor it lies, and where its bytes (written by
    torch.save) lie in which file.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    start: int
    length: int


@dataclass(frozen=True)
class DcpEntry:
    """One entry: a tensor of `dtype` and `shape`, or bytes (`dtype` empty, one chunk). `path`: the
    keys that lead to it in the saved state.
    """

    name: str
    path: tuple[str | int, ...]
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]


def is_dcp_folder(folder: Path) -> bool:
    """Whether DCP has written `folder`."""
    return (folder / METADATA).is_file() and any(
        child.suffix == ".distcp" for child in folder.iterdir()
    )


def entries_of(folder: Path) -> list[DcpEntry]:
    """Every entry that the folder's metadata names. ValueError for what is none of DCP."""
    value = read_pickle(read_whole(folder / METADATA, MAX_METADATA))
    try:
        fields = _fields(value)
        places = {_index(key): _fields(place) for key, place in fields["storage_data"]}
        paths = {
            name: path for name, path in fields.get("planner_data") or () if isinstance(path, tuple)
        }
        return [
            _entry(name, entry, paths.get(name, (name,)), places)
            for name, entry in fields["state_dict_metadata"]
        ]
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(
            f"metadata that is none of DCP ({type(error).__name__}: {str(error)[:80]})"
        ) from error


def path_text(path: tuple[str | int, ...]) -> str:
    """`a.b[0]` of the path of an entry."""
    return "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in path
    ).removeprefix(".")


@contextmanager
def _reader(folder: Path, chunk: Chunk) -> Iterator[Read]:
    """Reads within the bytes of `chunk`."""
    if "/" in chunk.file or chunk.file in ("", ".", ".."):
        raise ValueError(f"a file outside the folder ({chunk.file[:80]!r})")
    with opened(folder / chunk.file, 2**62) as fd:
        if chunk.start + chunk.length > os.fstat(fd).st_size:
            raise ValueError(f"{chunk.file} ends early")
        yield lambda at, count: os.pread(
            fd, max(0, min(count, chunk.length - at)), chunk.start + at
        )


@contextmanager
def chunk_file(folder: Path, chunk: Chunk) -> Iterator[TorchSaveFile]:
    """The bytes of `chunk` as the file of torch.save that they are."""
    with _reader(folder, chunk) as read:
        yield TorchSaveFile(read, chunk.length)


def chunk_bytes(folder: Path, chunk: Chunk) -> bytes:
    """The bytes of `chunk`, which torch.save wrote."""
    with _reader(folder, chunk) as read:
        return read(0, chunk.length)


def tensor_bytes(folder: Path, entry: DcpEntry) -> Iterator[bytes]:
    """The content of a whole tensor in order, in pieces, from its parts."""
    if len(entry.chunks) == 1:
        with chunk_file(folder, entry.chunks[0]) as file:
            yield from file.content(_tensor(file, entry, entry.chunks[0]))
        return
    width = WIDTHS[entry.dtype]
    if math.prod(entry.shape) * width > MAX_ASSEMBLED:
        raise ValueError(f"{entry.name[:80]!r} is in parts and too large to be put together")
    whole = np.empty(entry.shape, dtype=np.dtype(("V", width)))
    for chunk in entry.chunks:
        with chunk_file(folder, chunk) as file:
            data = b"".join(file.content(_tensor(file, entry, chunk)))
        place = tuple(
            slice(start, start + size)
            for start, size in zip(chunk.offsets, chunk.sizes, strict=True)
        )
        whole[place] = np.frombuffer(data, dtype=whole.dtype).reshape(chunk.sizes)
    yield whole.tobytes()


def _tensor(file: TorchSaveFile, entry: DcpEntry, chunk: Chunk) -> Tensor:
    tensor = file.value
    if not isinstance(tensor, Tensor) or (tensor.dtype, tensor.shape) != (entry.dtype, chunk.sizes):
        raise ValueError(f"{entry.name[:80]!r} is not what the metadata says")
    return tensor


def _fields(value: Any) -> dict[str, Any]:
    """The attributes of an instance."""
    state = value.state if isinstance(value, Instance) else None
    return dict(state) if isinstance(state, Pairs) else {}


def _index(value: Any) -> tuple[str, tuple[int, ...] | None]:
    fields = _fields(value)
    offset = fields.get("offset")
    return fields["fqn"], None if offset is None else _numbers(offset)


def _numbers(value: Any) -> tuple[int, ...]:
    """A torch.Size."""
    numbers = value.arguments[0] if isinstance(value, Instance) else value
    if not isinstance(numbers, tuple) or not all(
        type(number) is int and 0 <= number < 2**62 for number in numbers
    ):
        raise ValueError("a size that is none")
    return numbers


def _entry(name: Any, value: Any, path: Any, places: dict[Any, dict[str, Any]]) -> DcpEntry:
    if not isinstance(name, str) or not all(type(part) in (str, int) for part in path):
        raise ValueError("an entry without a name")
    fields = _fields(value)
    if "chunks" not in fields:
        return DcpEntry(name, path, "", (), (_chunk((), (), places[name, None]),))
    shape, properties = _numbers(fields["size"]), fields["properties"].state
    dtype = properties[0] if isinstance(properties, tuple) else dict(properties)["dtype"]
    if not isinstance(dtype, Named):
        raise ValueError(f"{name[:80]!r} has no dtype")
    chunks = []
    for chunk in fields["chunks"]:
        offsets, sizes = _numbers(_fields(chunk)["offsets"]), _numbers(_fields(chunk)["sizes"])
        if not len(offsets) == len(sizes) == len(shape) or any(
            o + s > n for o, s, n in zip(offsets, sizes, shape, strict=True)
        ):
            raise ValueError(f"a part of {name[:80]!r} lies outside it")
        chunks.append(
            _chunk(offsets, sizes, places[name, offsets if (name, offsets) in places else None])
        )
    if sum(math.prod(chunk.sizes) for chunk in chunks) != math.prod(shape):
        raise ValueError(f"the parts of {name[:80]!r} are not the whole")
    return DcpEntry(name, path, dtype.name.rpartition(" ")[2], shape, tuple(chunks))


def _chunk(offsets: tuple[int, ...], sizes: tuple[int, ...], place: dict[str, Any]) -> Chunk:
    file, start, length = place["relative_path"], place["offset"], place["length"]
    if not isinstance(file, str) or not all(
        type(number) is int and 0 <= number < 2**62 for number in (start, length)
    ):
        raise ValueError("a place that is none")
    if place.get("transform_descriptors"):
        raise ValueError("its bytes are compressed")
    return Chunk(offsets, sizes, file, start, length)
