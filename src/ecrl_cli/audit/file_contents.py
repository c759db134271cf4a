"""The content of one file that a job left, key by key: inert, without torch, and nothing in it is
executed.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from ecrl_cli.audit.inert_pickle import Elements, Instance, Named, Pairs, bytes_of, is_bytes
from ecrl_cli.audit.torch_save_file import Storage, Tensor, TorchSaveFile, in_memory
from ecrl_cli.checkpoint.format.hashing import hexdigest, streamed
from ecrl_cli.checkpoint.format.names import DIGEST
from ecrl_cli.checkpoint.format.torch_file import Read, Window
from ecrl_cli.checkpoint.repair.folder_manifest import npy_facts, npz_facts, safetensors_facts
from ecrl_cli.errors import first_line
from ecrl_cli.records.safe_read import opened
from ecrl_cli.storage.fs import PosixFs

MAX_FILE = 2**40
MAX_VALUES = 100_000  # of one file
MAX_DEPTH = 64
MAX_TEXT = 200  # characters of a value; of a longer one the beginning and a digest
MAX_LINE = 4000  # characters of a line of text, likewise: a row of a log is read cell by cell
MAX_KEY = 400
MAX_MEMBER = 2**28  # bytes of a file of torch inside a zip, which is read into memory
MAX_JSON = 4 * 2**20
MAX_LINES_BYTES = 2**20
MAX_LINES = 20_000
FEWEST_INTEGERS = 32  # a list of so many integers (a generator's state, an order) is one value
MOST_ELEMENTS = 2000  # a list of more numbers is one value
_PIECE = 4 * 2**20
# where the zip file inside a file of another format may begin, and how long its end may be
_FRONT, _ZIP_END = 4096, 2**16 + 22
DIGEST_LENGTH = 16  # hexadecimal digits
_UNPACKED = 2**36  # bytes of an .npz

TORCH = (".pt", ".pth", ".ckpt", ".bin", ".pkl", ".pickle", ".tar", ".model", ".distcp")
_PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".svg", ".pdf", ".webp", ".mp4")
# Formats whose bytes tell how they were written as well as what they hold.
_OPAQUE = {
    b"SQLite format 3": "a database",
    b"\x89HDF\r\n": "HDF5",
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}
_MANGLED = re.compile(r"___torch_mangle_\d+")  # TorchScript counts the classes of a process


@dataclass(frozen=True)
class Content:
    """`kind`: values (key by key, in `entries`), lines (text, in `lines`), bytes, picture, link, or
    unreadable (then `problem` says why).

    `digest`: of all of it; two of one kind with equal digests are equal.
    """

    kind: str
    bytes: int
    digest: str
    entries: dict[str, str] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    problem: str = ""


def content_of(path: Path, folder: str) -> Content:
    """The content of the regular file `path`. In texts `folder` is replaced by {dir}: it is another
    in each arm. OSError as from `open`.
    """
    with opened(path, MAX_FILE) as fd:
        size = os.fstat(fd).st_size
        try:
            return _read(path, fd, size, folder)
        except Exception as error:  # zipfile, zlib and numpy raise many types for damaged files
            return Content("unreadable", size, _whole(fd, size), problem=first_line(error, 160))


def _read(path: Path, fd: int, size: int, folder: str) -> Content:
    suffix, start = path.suffix.lower(), os.pread(fd, 16, 0)
    if suffix == ".safetensors":
        return of_entries(
            {
                name: f"{t.dtype} {t.shape} {t.digest[:DIGEST_LENGTH]}"
                for name, t in safetensors_facts(PosixFs(), fd, size, DIGEST)
            },
            size,
        )
    if suffix in (".npz", ".npy"):
        return of_entries(dict(_of_numpy(fd, suffix)), size)
    if start[:4] == b"PK\x03\x04":
        return of_entries(_of_zip(_reader(fd), size, folder), size)
    if front := _in_front_of_zip(fd, size):
        inner = _of_zip(_reader(fd, front), size - front, folder)
        return of_entries({**inner, "bytes in front": str(front)}, size)
    if start[:1] == b"\x80" and start[1:2] <= b"\x05" and suffix in TORCH:
        return of_entries(Flattener(TorchSaveFile(_reader(fd), size), folder).entries(), size)
    if suffix in _PICTURES:
        return Content("picture", size, _whole(fd, size))
    opaque = next((name for magic, name in _OPAQUE.items() if start.startswith(magic)), "")
    if opaque:
        return Content(
            "unreadable",
            size,
            _whole(fd, size),
            problem=f"{opaque}: its bytes tell how it was written too",
        )
    return _of_text(fd, size, suffix, folder) or Content("bytes", size, _whole(fd, size))


def of_entries(entries: dict[str, str], size: int) -> Content:
    """The content of a file of values, with the digest of all of them."""
    return Content("values", size, _digest(sorted(entries.items())), entries)


def _digest(value: Any) -> str:
    return hexdigest(DIGEST, json.dumps(value).encode())


def _whole(fd: int, size: int) -> str:
    return streamed(DIGEST, b"", (os.pread(fd, _PIECE, at) for at in range(0, size, _PIECE)))


def _reader(fd: int, front: int = 0) -> Read:
    """Reads the file from `front` on."""
    return lambda at, count: os.pread(fd, count, front + at)


def _in_front_of_zip(fd: int, size: int) -> int:
    """How many bytes stand in front of a zip file that the file ends with: a checksum or a length
    of it, in the formats that jobs make for themselves. 0 if it is no such file.
    """
    begins = os.pread(fd, _FRONT, 0).find(b"PK\x03\x04")
    end = max(0, size - _ZIP_END)
    return begins if begins > 0 and b"PK\x05\x06" in os.pread(fd, _ZIP_END, end) else 0


def _of_numpy(fd: int, suffix: str) -> Iterator[tuple[str, str]]:
    with open(fd, "rb", closefd=False) as file:
        several = suffix == ".npz"
        facts = (
            list(npz_facts(file, DIGEST, _UNPACKED))
            if several
            else [("", npy_facts(file, DIGEST, _UNPACKED)[0])]
        )
        file.seek(0)
        loaded: Any = (
            np.load(file, allow_pickle=False) if any(not f.shape for _, f in facts) else {}
        )
        for name, array in facts:
            number = ""
            if not array.shape:
                value = loaded[name] if several else loaded
                number = f"tensor({value.item()!r}) " if value.dtype.kind in "biufc" else ""
            yield name, f"{number}{array.dtype} {array.shape} {array.digest[:DIGEST_LENGTH]}"


def _of_zip(read: Read, size: int, folder: str) -> dict[str, str]:
    """A file of torch.save or of TorchScript; of another zip file each member: the times in it are
    no content.
    """
    window = Window(read, size, 2**24)
    with zipfile.ZipFile(cast(IO[bytes], window)) as archive:
        names = archive.namelist()
        pickled = any(name.endswith("/data.pkl") for name in names)
        window.allow(2 * size + 2**24)
        entries = Flattener(TorchSaveFile(read, size), folder).entries() if pickled else {}
        left = 2 * size + 2**28
        for info in archive.infolist():
            name = info.filename.partition("/")[2] if pickled else info.filename
            if pickled and (
                not name.startswith(("code/", "constants")) or name.endswith(".debug_pkl")
            ):
                continue
            left -= info.file_size
            if left < 0:
                raise ValueError("members of too many bytes")
            inside = {} if pickled else _inside_member(archive, info, folder)
            entries.update(inside)
            if inside:
                continue
            digest = _member_digest(archive, info, code=name.startswith("code/"))
            entries[_MANGLED.sub("", name)] = f"{info.file_size} bytes {digest[:DIGEST_LENGTH]}"
    return entries


def _inside_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, folder: str) -> dict[str, str]:
    """The values of a member that is a file of torch.save, whose bytes differ after a load; empty
    where it is none.
    """
    if Path(info.filename).suffix.lower() not in TORCH or info.file_size > MAX_MEMBER:
        return {}
    data = archive.read(info)
    try:
        values = Flattener(TorchSaveFile(in_memory(data), len(data)), folder).entries()
    except ValueError:
        return {}
    return {f"{info.filename}: {key}": text for key, text in values.items()}


def _member_digest(archive: zipfile.ZipFile, info: zipfile.ZipInfo, *, code: bool) -> str:
    with archive.open(info) as file:
        if code and info.file_size <= MAX_JSON:
            return hexdigest(
                DIGEST, _MANGLED.sub("", file.read().decode("utf-8", "replace")).encode()
            )
        return streamed(DIGEST, b"", iter(lambda: file.read(_PIECE), b""))


def _of_text(fd: int, size: int, suffix: str, folder: str) -> Content | None:
    """JSON key by key, other text line by line; None for what is no text."""
    if size > MAX_JSON:
        return None
    data = os.pread(fd, size, 0)
    if b"\0" in data:
        return None
    try:
        text = data.decode().replace(folder, "{dir}")
    except UnicodeDecodeError:
        return None
    if suffix == ".json":
        try:
            return of_entries(Flattener(None, folder).entries(_as_pairs(json.loads(text))), size)
        except (ValueError, RecursionError):
            pass  # no JSON, or too much of it: text
    lines = text.splitlines()
    if size > MAX_LINES_BYTES or len(lines) > MAX_LINES:
        return Content(
            "unreadable",
            size,
            _whole(fd, size),
            problem=f"{len(lines)} lines of text, too many to be compared one by one",
        )
    return Content(
        "lines",
        size,
        hexdigest(DIGEST, text.encode()),
        lines=tuple(shortened(line, MAX_LINE) for line in lines),
    )


def _as_pairs(value: Any, depth: int = 0) -> Any:
    if depth > MAX_DEPTH:
        raise ValueError("nested too deeply")
    if isinstance(value, dict):
        return Pairs((key, _as_pairs(item, depth + 1)) for key, item in value.items())
    return [_as_pairs(item, depth + 1) for item in value] if isinstance(value, list) else value


def shortened(text: str, limit: int = MAX_TEXT) -> str:
    """`text`, of a long one the beginning and a digest."""
    return (
        text
        if len(text) <= limit
        else (
            f"{text[:limit]}..."
            f" {hexdigest(DIGEST, text.encode('utf-8', 'surrogatepass'))[:DIGEST_LENGTH]}"
        )
    )


class Flattener:
    """The values of an inert structure by the path that leads to each; `file` holds its tensors.
    ValueError for too many, or too deep.
    """

    def __init__(self, file: TorchSaveFile | None, folder: str) -> None:
        self._file, self._folder = file, folder
        self._left = MAX_VALUES
        # of texts and byte strings that are hashed: the same may be named often
        self._bytes = 2**28

    def entries(self, value: Any = None, key: str = "") -> dict[str, str]:
        """The entries of `value`, or of all that the file holds, below `key`."""
        entries: dict[str, str] = {}
        self._add(entries, key, self._file.value if self._file is not None else value, 0)
        return entries

    def _add(self, entries: dict[str, str], key: str, value: Any, depth: int) -> None:
        self._left -= 1
        if self._left < 0 or depth > MAX_DEPTH:
            raise ValueError(
                "nested too deeply" if depth > MAX_DEPTH else f"more than {MAX_VALUES} values"
            )
        parts = list(self._parts(value))
        if not parts:
            entries[_free(entries, shortened(key, MAX_KEY))] = self._text(value, depth)
        for name, item in parts:
            self._add(entries, f"{key}{name}" if key else name.removeprefix("."), item, depth + 1)

    def _parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        """The parts of a container by the text that leads to them; none for a value, and for an
        empty container.
        """
        if isinstance(value, Pairs):
            yield from ((f".{self._key(key)}", item) for key, item in value)
        elif isinstance(value, list | tuple) and not isinstance(value, Elements):
            if not _one_value(value):
                yield from ((f"[{number}]", item) for number, item in enumerate(value))
        elif isinstance(value, Instance) and not (
            is_bytes(value) or _simple(value) or _array_of(value)
        ):
            yield ".(class)", Named(value.kind)
            if value.arguments != ():
                yield ".(arguments)", value.arguments
            if value.state is not None:
                yield "", value.state
            if value.items:
                yield "", value.items
            if value.pairs:
                yield "", value.pairs

    def _key(self, key: Any) -> str:
        if isinstance(key, str | int | float | None):
            return str(key)
        plain = isinstance(key, tuple) and _is_plain(key)
        return repr(key) if plain else self._inline(key, MAX_DEPTH - 8)

    def _inline(self, value: Any, depth: int) -> str:
        """The text of a value that has no path: an element of a set, a key."""
        entries: dict[str, str] = {}
        self._add(entries, "", value, depth)
        return entries[""] if entries.keys() == {""} else json.dumps(sorted(entries.items()))

    def _text(self, value: Any, depth: int) -> str:
        if isinstance(value, Tensor | Storage):
            return self._tensor(value)
        if isinstance(value, Named):
            return _MANGLED.sub("", value.name.replace(" ", "."))
        if isinstance(value, Elements):
            return self._set(value, depth)
        if isinstance(value, Pairs | list | tuple):
            return (
                f"{len(value)} numbers {self._hashed(json.dumps(value).encode())}"
                if value
                else "empty"
            )
        if isinstance(value, Instance) and not is_bytes(value):
            return (
                self._array(value)
                if _array_of(value)
                else f"{value.kind.replace(' ', '.')}{value.arguments!r}"
            )
        value = bytes_of(value)
        if isinstance(value, bytes | bytearray):
            return f"{len(value)} bytes {self._hashed(bytes(value))}"
        if isinstance(value, int) and value.bit_length() > 1000:
            content = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            return f"integer {self._hashed(content)}"
        if isinstance(value, str):
            self._charge(len(value))
            value = value.replace(self._folder, "{dir}")
        return shortened(repr(value))

    def _tensor(self, value: Tensor | Storage) -> str:
        if self._file is None:
            raise ValueError("a tensor outside a file of tensors")
        digest = self._file.digest(value)[:DIGEST_LENGTH]
        if isinstance(value, Storage):
            return f"storage of {value.nbytes} bytes {digest}"
        number = (
            f"{_number(value.dtype, b''.join(self._file.content(value)))} "
            if value.nbytes <= 16 and not any(n > 1 for n in value.shape)
            else ""
        )
        return f"{number}{value.dtype} {value.shape} {digest}"

    def _set(self, value: Elements, depth: int) -> str:
        return shortened(
            "{" + ", ".join(sorted(self._inline(item, depth + 1) for item in value)) + "}"
        )

    def _array(self, value: Instance) -> str:
        """A numpy array or scalar."""
        shape, kind, data = _array_of(value) or ((), "", b"")
        if isinstance(data, list):  # of Python objects
            entries: dict[str, str] = {}
            self._add(entries, "", data, MAX_DEPTH // 2)
            return f"{kind} {shape} {_digest(sorted(entries.items()))[:DIGEST_LENGTH]}"
        number = (
            f"{np.frombuffer(data, dtype=kind)[0]!r} "
            if value.kind.endswith(" scalar") and len(data) <= 16 and kind[:1] in "fiub"
            else ""
        )
        return f"{number}{kind} {shape} {self._hashed(data)}"

    def _hashed(self, data: bytes) -> str:
        self._charge(len(data))
        return hexdigest(DIGEST, data)[:DIGEST_LENGTH]

    def _charge(self, count: int) -> None:
        self._bytes -= count
        if self._bytes < 0:
            raise ValueError("texts of too many bytes")


def _free(entries: dict[str, str], key: str) -> str:
    """`key`, or with a number where two values have one path."""
    number, free = 1, key
    while free in entries:
        number += 1
        free = f"{key}#{number}"
    return free


def _one_value(value: list[Any] | tuple[Any, ...]) -> bool:
    """Whether a list counts as one value: many integers, or very many numbers."""
    if len(value) < FEWEST_INTEGERS:
        return False
    return all(type(item) is int for item in value) or (
        len(value) > MOST_ELEMENTS and all(type(item) in (int, float) for item in value)
    )


def _simple(value: Instance) -> bool:
    """Whether it is a call with a few plain arguments: a device, a size, an enum."""
    plain = (
        value.state is None
        and not value.items
        and not value.pairs
        and isinstance(value.arguments, tuple)
    )
    return plain and all(_is_plain(item) for item in value.arguments) and len(value.arguments) < 16


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return len(value) < 16 and all(
            type(item) in (int, float, bool, str, type(None)) for item in value
        )
    return type(value) in (int, float, bool, type(None)) or (
        type(value) is str and len(value) <= MAX_TEXT
    )


def _array_of(value: Instance) -> tuple[tuple[int, ...], str, Any] | None:
    """Shape, dtype and data of a pickled numpy array or scalar; None for other objects."""
    module, _, name = value.kind.partition(" ")
    if module not in ("numpy.core.multiarray", "numpy._core.multiarray"):
        return None
    shape: Any
    if name == "scalar" and len(value.arguments) == 2:
        shape, dtype, fortran, data = (), value.arguments[0], False, bytes_of(value.arguments[1])
    elif name == "_reconstruct" and isinstance(value.state, tuple) and len(value.state) == 5:
        _, shape, dtype, fortran, data = value.state
        data = bytes_of(data)
    else:
        return None
    if not (
        isinstance(dtype, Instance)
        and dtype.arguments
        and isinstance(dtype.arguments[0], str)
        and isinstance(data, bytes | list)
    ):
        return None
    if not isinstance(shape, tuple) or not all(type(number) is int for number in shape):
        return None
    return shape, dtype.arguments[0] + " F" * bool(fortran), data


_NUMPY = {
    name: np.dtype(name)
    for name in (
        "float64 float32 float16 int64 int32 int16 int8 uint8 bool complex64 complex128"
    ).split()
}


def _number(dtype: str, data: bytes) -> str:
    """The value of a tensor of one element, where numpy has its type."""
    return (
        f"tensor({np.frombuffer(data, dtype=_NUMPY[dtype])[0].item()!r})"
        if dtype in _NUMPY and data
        else "tensor"
    )
