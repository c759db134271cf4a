"""A manifest of digests over a folder of files that ECRL did not write, and what has changed since
it was written.

Of each file its digest, and of `.safetensors`, `.npz` and `.npy` that of each tensor. Nothing is
unpickled or loaded whole.
"""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from ecrl_cli.checkpoint.format.canonical_json import canonical_json, digest, parse
from ecrl_cli.checkpoint.format.hashing import new_hash, streamed
from ecrl_cli.checkpoint.format.names import DIGEST
from ecrl_cli.checkpoint.format.tensor_table import all_finite, header_length
from ecrl_cli.config.codec import decode, encode
from ecrl_cli.config.schema import DIGESTS
from ecrl_cli.errors import (
    ConfigError,
    EcrlError,
    EvidenceMissing,
    StorageError,
    first_line,
    plural,
)
from ecrl_cli.storage.files import write_whole
from ecrl_cli.storage.fs import FOLDER, Fs, PosixFs
from ecrl_cli.storage.safe_read import (
    MOST_DEEP,
    PIECE,
    RefusedFile,
    fill,
    open_regular,
    pieces,
    read_small_in,
)

FOLDER_MANIFEST = "ecrl-manifest.json"
SCHEMA_VERSION = 1
MAX_FOLDER_MANIFEST = 256 * 2**20
MOST_NAMED = 5  # tensors of a changed file

SAME, CHANGED, MISSING, NEW, DAMAGED = "same", "changed", "missing", "new", "damaged"


# safetensors' dtypes: bytes per element, and as ours are called where they are floating-point
# numbers.
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


@dataclass(frozen=True)
class FolderManifest:
    """ecrl-manifest.json: the facts of each file by its path in the folder."""

    schema_version: int
    digest: str
    files: dict[str, FileFacts]


@dataclass(frozen=True)
class FileChange:
    """One file compared with the manifest: `status` is same, changed, missing, new or damaged;
    `said`: how it changed.
    """

    path: str
    status: str
    said: str = ""


def folder_manifest(folder: Path, max_bytes: int, algorithm: str = DIGEST) -> FolderManifest:
    """The manifest of `folder` as it is now; StorageError if it cannot be listed."""
    fs = PosixFs()
    return FolderManifest(
        SCHEMA_VERSION,
        algorithm,
        dict(sorted(_files(fs, folder, "", algorithm, max_bytes, MOST_DEEP))),
    )


def write_manifest(folder: Path, manifest: FolderManifest) -> Path:
    """Writes it into `folder`, durably; StorageError if that cannot be done."""
    body = encode(manifest)
    path = folder / FOLDER_MANIFEST
    try:
        write_whole(path, canonical_json(body | {"self_sha256": digest(body)}) + b"\n")
    except OSError as error:
        raise StorageError.of("manifest", path, error) from error
    return path


def read_manifest(folder: Path) -> FolderManifest | None:
    """The manifest in `folder`, None if there is none; EvidenceMissing if it is damaged."""
    if not os.path.lexists(folder / FOLDER_MANIFEST):
        return None
    try:
        value = parse(read_small_in(PosixFs(), folder, FOLDER_MANIFEST, MAX_FOLDER_MANIFEST))
        if not isinstance(value, dict) or value.pop("self_sha256", None) != digest(value):
            raise ValueError("its own digest does not match")
        found = decode(FolderManifest, value)
        if found.schema_version != SCHEMA_VERSION or found.digest not in DIGESTS:
            raise ValueError(f"schema version {found.schema_version}, digest {found.digest[:20]}")
    except (RefusedFile, ValueError, TypeError, RecursionError, EcrlError) as error:
        text = error.fact if isinstance(error, EcrlError) else str(error)
        raise EvidenceMissing(
            FOLDER_MANIFEST,
            f"cannot vouch for anything ({text[:160]})",
            "restore it, or remove it to write another",
        ) from error
    return found


def changes(before: FolderManifest, now: FolderManifest) -> list[FileChange]:
    """Every file on either side, by path."""
    return [
        _change(path, before.files.get(path), now.files.get(path))
        for path in sorted(before.files.keys() | now.files.keys())
    ]


def _change(path: str, before: FileFacts | None, now: FileFacts | None) -> FileChange:
    if before is None:
        return FileChange(path, NEW, "not in the manifest")
    if now is None:
        return FileChange(path, MISSING, "is gone")
    if (before.bytes, before.digest) == (now.bytes, now.digest):
        return FileChange(path, SAME)
    if now.problem and not before.problem:
        return FileChange(path, DAMAGED, f"cannot be loaded any more ({now.problem})")
    return FileChange(path, CHANGED, _said(before, now))


def _said(before: FileFacts, now: FileFacts) -> str:
    """How a file changed: its size, tensors added and removed, tensors of another form, tensors
    with other values.
    """
    size = f"{before.bytes} bytes, now {now.bytes}" if before.bytes != now.bytes else ""
    if not before.tensors and not now.tensors:
        return size or "other bytes of the same number"
    both = [name for name in before.tensors if name in now.tensors]
    gone, came = (
        [name for name in one if name not in other]
        for one, other in ((before.tensors, now.tensors), (now.tensors, before.tensors))
    )
    formed = [name for name in both if _form(before.tensors[name]) != _form(now.tensors[name])]
    valued = [
        name
        for name in both
        if name not in formed and before.tensors[name].digest != now.tensors[name].digest
    ]
    broken = [
        name for name in valued if before.tensors[name].finite and not now.tensors[name].finite
    ]
    parts = [
        f"{what} {_named(names)}"
        for what, names in (("lacks", gone), ("has new", came), ("another dtype or shape:", formed))
        if names
    ]
    parts += [f"other values in {_named(valued)}"] if valued else []
    parts += [f"NaN or infinity in {_named(broken)}"] if broken else []
    same = len(both) - len(formed) - len(valued)
    kept = f"{plural(same, 'tensor is', 'tensors are')} the same" if same else ""
    if not parts:
        return f"every tensor is the same ({len(both)}), the bytes around them are not"
    return "; ".join(part for part in (*parts, kept) if part)


def _form(tensor: TensorFacts) -> tuple[str, tuple[int, ...]]:
    return tensor.dtype, tensor.shape


def _named(names: list[str]) -> str:
    rest = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(repr(name[:80]) for name in sorted(names)[:MOST_NAMED]) + rest


def _files(
    fs: Fs, folder: Path, prefix: str, algorithm: str, max_bytes: int, deep: int
) -> Iterator[tuple[str, FileFacts]]:
    """Every file below `folder`; links and what is no regular file are kept with the reason, and
    not followed.
    """
    if not deep:
        raise ConfigError(
            str(folder),
            f"has more than {MOST_DEEP} levels of folders",
            "name the folders that hold the files",
        )
    home = fs.open(folder, FOLDER)
    try:
        for name in fs.listdir(folder):
            if not prefix and name == FOLDER_MANIFEST:
                continue
            path = folder / name
            if path.is_dir() and not path.is_symlink():
                yield from _files(fs, path, f"{prefix}{name}/", algorithm, max_bytes, deep - 1)
                continue
            try:
                yield f"{prefix}{name}", examine(fs, home, name, algorithm, max_bytes)
            except (RefusedFile, StorageError) as error:
                text = error.fact if isinstance(error, StorageError) else str(error)
                yield f"{prefix}{name}", FileFacts(0, "", problem=text[:160])
    finally:
        fs.close(home)


def examine(fs: Fs, folder: int, name: str, algorithm: str, max_bytes: int) -> FileFacts:
    """The facts of the regular file `name` in the open `folder`; RefusedFile or StorageError if it
    cannot be read as one. `max_bytes`: how much its tensors may have, unpacked.
    """
    fd, size = open_regular(fs, folder, name, trust_owner=True)
    try:
        whole = streamed(algorithm, b"", pieces(fs, fd, 0, size))
        try:
            if name.endswith(".safetensors"):
                return FileFacts(size, whole, dict(safetensors_facts(fs, fd, size, algorithm)))
            if name.endswith((".npz", ".npy")):
                with open(fd, "rb", closefd=False) as file:
                    found = (
                        npz_facts(file, algorithm, max_bytes)
                        if name.endswith(".npz")
                        else iter([("", npy_facts(file, algorithm, max_bytes)[0])])
                    )
                    return FileFacts(size, whole, dict(found))
        except Exception as error:  # zipfile, zlib and numpy raise many types for damaged files
            return FileFacts(size, whole, problem=first_line(error, 160))
        return FileFacts(size, whole)
    finally:
        fs.close(fd)


def safetensors_facts(
    fs: Fs, fd: int, size: int, algorithm: str
) -> Iterator[tuple[str, TensorFacts]]:
    """The tensors of a safetensors file by name. ValueError where header and size disagree."""
    if size < 8:
        raise ValueError("no safetensors file")
    length = header_length(bytes(fill(fs, fd, memoryview(bytearray(8)), 0)), size)
    header = parse(bytes(fill(fs, fd, memoryview(bytearray(length)), 8)))
    if not isinstance(header, dict):
        raise ValueError("a header that is no object")
    end = start = 8 + length
    spans = sorted(
        (*_span(name, entry), name) for name, entry in header.items() if name != "__metadata__"
    )
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
    sound = (
        isinstance(entry, dict)
        and entry.keys() == {"dtype", "shape", "data_offsets"}
        and isinstance(entry["dtype"], str)
    )
    if not sound or not all(isinstance(entry[key], list) for key in ("shape", "data_offsets")):
        raise ValueError(f"entry of {name[:80]!r}")
    numbers = [*entry["shape"], *entry["data_offsets"]]
    if len(entry["data_offsets"]) != 2 or not all(
        type(number) is int and number >= 0 for number in numbers
    ):
        raise ValueError(f"shape or offsets of {name[:80]!r}")
    begin, end = entry["data_offsets"]
    width = _SAFETENSORS.get(entry["dtype"], (0, ""))[0]
    if end < begin or (width and end - begin != width * math.prod(entry["shape"])):
        raise ValueError(f"size of {name[:80]!r}")
    return begin, end


def npz_facts(file: IO[bytes], algorithm: str, max_bytes: int) -> Iterator[tuple[str, TensorFacts]]:
    """The arrays of a .npz file by name; at most `max_bytes` are unpacked."""
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        if len(set(names)) != len(names):
            raise ValueError("two entries of one name")
        left = max_bytes
        for name in names:
            with archive.open(name) as member:
                facts, size = npy_facts(member, algorithm, left)
            left -= size
            yield name.removesuffix(".npy"), facts


def npy_facts(file: IO[bytes], algorithm: str, most: int) -> tuple[TensorFacts, int]:
    """One array in numpy's format and its bytes, read piece by piece: what a header promises is not
    allocated; at most `most` are unpacked.
    """
    version = np.lib.format.read_magic(file)
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
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
        finite = finite and (
            dtype.kind not in "fc" or bool(np.isfinite(np.frombuffer(piece, dtype=dtype)).all())
        )
        left -= len(piece)
    if file.read(1):
        raise ValueError("bytes after its end")
    return (
        TensorFacts(
            kind + " F" * fortran, tuple(int(number) for number in shape), state.hexdigest(), finite
        ),
        size,
    )


def _exactly(file: IO[bytes], count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        got = file.read(count - len(found))
        if not got:
            raise ValueError(f"ends {count - len(found)} bytes early")
        found += got
    return bytes(found)
