"""Reads the tensors' places in one of our `.pt` files, without torch and without unpickling. For
integrity check, scrub and loader.

torch.save writes a zip file whose entries are not compressed: `data.pkl` names the tensors,
`data/N` holds the bytes of storage N. The pickle is read by an interpreter of the few opcodes that
such a file uses. It builds plain data only: no class is looked up, no function is called. It
accepts exactly what `StagingBuffer.serialize` writes: {"tensors": {name: tensor}, "train": text},
each tensor contiguous with its own storage.
"""

from __future__ import annotations

import io
import itertools
import math
import pickletools
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, cast

from ecrl_cli.checkpoint.format.image import DTYPES, TensorPlace, TensorSpec
from ecrl_cli.checkpoint.format.manifest import PartEntry

Read = Callable[[int, int], bytes]  # (offset, number of bytes) of the file

_LOCAL_HEADER = 30  # bytes of a zip entry's local header before its name
_PICKLE = "data.pkl"
_OTHERS = {
    "version",
    "byteorder",
    ".format_version",
    ".storage_alignment",
    ".data/serialization_id",
}
_STORAGES = {
    "DoubleStorage": "torch.float64",
    "LongStorage": "torch.int64",
    "ComplexFloatStorage": "torch.complex64",
    "FloatStorage": "torch.float32",
    "IntStorage": "torch.int32",
    "HalfStorage": "torch.float16",
    "BFloat16Storage": "torch.bfloat16",
    "ShortStorage": "torch.int16",
    "CharStorage": "torch.int8",
    "ByteStorage": "torch.uint8",
    "BoolStorage": "torch.bool",
}


@dataclass(frozen=True)
class _Global:
    """The name of a class or function in the pickle; never resolved."""

    name: str


@dataclass(frozen=True)
class _Storage:
    dtype: str
    key: str
    elements: int


@dataclass(frozen=True)
class _Tensor:
    storage: _Storage
    shape: tuple[int, ...]


def torch_places(read: Read, entry: PartEntry, train: bytes) -> list[TensorPlace]:
    """The place of each tensor of the manifest's `entry`, in file order. ValueError unless file,
    manifest and `train` agree exactly.
    """
    # most bytes that a pickle of these tensors can have: a longer one is not read
    longest = (
        4096
        + len(train)
        + sum(
            512 + 4 * len(name) + 32 * len(tensor.shape) for name, tensor in entry.tensors.items()
        )
    )
    archive = _Archive(read, entry, longest)
    tensors, text = _content(archive.pickle)
    if text.encode() != train:
        raise ValueError("the file holds another train.json than the one beside it")
    if tensors.keys() != entry.tensors.keys():
        raise ValueError("file and manifest name different tensors")
    keys = [tensor.storage.key for tensor in tensors.values()]
    if len(set(keys)) != len(keys) or set(keys) != archive.storages.keys():
        raise ValueError("tensors and storages do not correspond")
    found = [
        archive.place(_spec(name, tensors[name], entry), tensors[name].storage.key)
        for name in tensors
    ]
    found.sort(key=lambda place: (place.offset, place.spec.nbytes))
    for one, following in itertools.pairwise(found):
        if one.offset + one.spec.nbytes > following.offset:
            raise ValueError(f"{following.spec.name[:80]!r} overlaps another tensor")
    return found


def _spec(name: str, tensor: _Tensor, entry: PartEntry) -> TensorSpec:
    declared = entry.tensors[name]
    if declared.dtype not in DTYPES:
        raise ValueError(f"dtype {declared.dtype[:40]!r}")
    if (tensor.storage.dtype, tensor.shape) != (declared.dtype, declared.shape):
        raise ValueError(f"dtype or shape of {name[:80]!r} differs from the manifest")
    if tensor.storage.elements != math.prod(tensor.shape):
        raise ValueError(f"size of {name[:80]!r}")
    return TensorSpec(name, declared.dtype, declared.shape)


class _Archive:
    """The zip file: its pickle, and its storages by key."""

    def __init__(self, read: Read, entry: PartEntry, longest: int) -> None:
        self._read, self._size = read, entry.bytes
        # the directory of the zip takes some 100 bytes for each entry, and is read twice at most
        window = Window(read, entry.bytes, longest + 2**18 + 1024 * len(entry.tensors))
        try:
            self._open(window, longest)
        except ValueError:
            raise
        except Exception as error:  # zipfile raises many types for damaged files
            raise ValueError(
                f"not a zip file as torch.save writes it ({type(error).__name__}:"
                f" {str(error)[:80]})"
            ) from error

    def _open(self, window: Window, longest: int) -> None:
        with zipfile.ZipFile(cast(IO[bytes], window)) as archive:
            entries = archive.infolist()
            prefix = next(
                (
                    info.filename.removesuffix(_PICKLE)
                    for info in entries
                    if info.filename.endswith("/" + _PICKLE)
                ),
                "",
            )
            named = {info.filename.removeprefix(prefix): info for info in entries}
            if (
                not prefix
                or len(named) != len(entries)
                or any(not info.filename.startswith(prefix) for info in entries)
            ):
                raise ValueError("not the entries of a file of torch.save")
            for info in entries:
                if (
                    info.compress_type != zipfile.ZIP_STORED
                    or info.flag_bits & 1
                    or info.file_size != info.compress_size
                ):
                    raise ValueError(f"entry {info.filename[:80]!r} is compressed or encrypted")
            if named[_PICKLE].file_size > longest:
                raise ValueError(f"a pickle of {named[_PICKLE].file_size} bytes for these tensors")
            if "byteorder" in named and archive.read(named["byteorder"]) != b"little":
                raise ValueError("not in little-endian byte order")
            self.pickle = archive.read(named.pop(_PICKLE))
            self.storages = {
                name.removeprefix("data/"): info
                for name, info in named.items()
                if name.startswith("data/")
            }
            if unknown := sorted(
                name for name in named if not name.startswith("data/") and name not in _OTHERS
            ):
                raise ValueError(f"has an entry {unknown[0][:80]!r}, which does not belong")

    def place(self, spec: TensorSpec, key: str) -> TensorPlace:
        """The place of the storage `key`, which must have the size of `spec`. The zip's local entry
        and directory must have the same name for it.
        """
        info = self.storages[key]
        header = self._read(info.header_offset, _LOCAL_HEADER)
        name_bytes, extra_bytes = (
            int.from_bytes(header[26:28], "little"),
            int.from_bytes(header[28:30], "little"),
        )
        start = info.header_offset + _LOCAL_HEADER
        if header[:4] != b"PK\x03\x04" or self._read(start, name_bytes) != info.filename.encode():
            raise ValueError(
                f"the entry of {spec.name[:80]!r} is not where the directory of the zip says"
            )
        offset = start + name_bytes + extra_bytes
        if info.file_size != spec.nbytes or offset + spec.nbytes > self._size:
            raise ValueError(f"size of {spec.name[:80]!r}")
        return TensorPlace(spec, offset)


class Window(io.RawIOBase):
    """A file object for zipfile that reads at most `limit` bytes in total; ValueError beyond."""

    def __init__(self, read: Read, size: int, limit: int) -> None:
        super().__init__()
        self._read, self._size, self._left, self._at = read, size, limit, 0

    def allow(self, more: int) -> None:
        """Let `more` bytes be read beyond the limit."""
        self._left += more

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if at < 0:
            raise ValueError("a place before the file")
        self._at = at
        return at

    def read(self, count: int | None = -1, /) -> bytes:
        rest = max(0, self._size - self._at)
        count = rest if count is None or count < 0 else min(count, rest)
        self._left -= count
        if self._left < 0:
            raise ValueError("a directory of the zip that is too long")
        data = self._read(self._at, count) if count else b""
        self._at += count
        return data


def _content(data: bytes) -> tuple[dict[str, _Tensor], str]:
    """The content of the pickle: the tensors by name, and the text of train.json."""
    try:
        value = _Interpreter().run(data)
        tensors, train = value["tensors"], value["train"]
        sound = len(value) == 2 and isinstance(train, str) and isinstance(tensors, dict)
        if not sound or not all(
            isinstance(name, str) and isinstance(tensor, _Tensor)
            for name, tensor in tensors.items()
        ):
            raise ValueError("not what a checkpoint holds")
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise ValueError(f"the pickle is none of a checkpoint ({str(error)[:120]})") from error
    return tensors, train


_MARK = object()


class _Interpreter:
    """Runs the opcodes of torch.save's pickle (protocol 2) on plain data. ValueError for any other
    opcode, class or function.
    """

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        for opcode, argument, position in pickletools.genops(data):
            if opcode.name == "STOP":
                (value,) = self._stack
                if position != len(data) - 1:
                    raise ValueError("bytes behind its end")
                return value
            self._step(opcode.name, argument)
        raise ValueError("has no end")

    def _step(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name == "PROTO":
            if argument != 2:
                raise ValueError(f"protocol {argument}")
        elif name in ("BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1"):
            stack.append(argument)
        elif name in ("BINPUT", "LONG_BINPUT"):
            self._memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name]())
        elif name in _TUPLES:
            count = _TUPLES[name]
            stack[-count:] = [tuple(stack[-count:])]
        elif name == "TUPLE":
            stack.append(tuple(self._since_mark()))
        elif name == "SETITEM":
            value, key = stack.pop(), stack.pop()
            self._set([key, value])
        elif name == "SETITEMS":
            self._set(self._since_mark())
        elif name == "GLOBAL":
            stack.append(_Global(argument))
        elif name == "BINPERSID":
            stack.append(_storage(stack.pop()))
        elif name == "REDUCE":
            arguments, function = stack.pop(), stack.pop()
            stack.append(_called(function, arguments))
        else:
            raise ValueError(f"opcode {name}")

    def _since_mark(self) -> list[Any]:
        found: list[Any] = []
        while (value := self._stack.pop()) is not _MARK:
            found.append(value)
        return found[::-1]

    def _set(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, dict):
            raise ValueError("items of what is no dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str) or key in target:
                raise ValueError("a key that is no text, or is there twice")
            target[key] = value


_CONSTANTS: dict[str, Callable[[], Any]] = {
    "MARK": lambda: _MARK,
    "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
    "NEWFALSE": lambda: False,
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def _storage(value: Any) -> _Storage:
    kind, owner, key, _, elements = value
    module, _, name = owner.name.partition(" ")
    if (
        kind != "storage"
        or module != "torch"
        or name not in _STORAGES
        or not isinstance(key, str)
        or type(elements) is not int
    ):
        raise ValueError("a storage that is none")
    return _Storage(_STORAGES[name], key, elements)


def _called(function: Any, arguments: Any) -> Any:
    """The result of the two functions that a checkpoint's pickle may call, as plain data."""
    name = function.name if isinstance(function, _Global) else ""
    if name == "collections OrderedDict" and arguments == ():
        return {}
    if name != "torch._utils _rebuild_tensor_v2":
        raise ValueError(f"calls {name[:80]!r}")
    storage, offset, shape, strides, gradient, hooks = arguments
    if not isinstance(storage, _Storage) or offset != 0 or gradient is not False or hooks != {}:
        raise ValueError("a tensor that is no plain one")
    if not all(type(number) is int and number >= 0 for number in shape) or strides != _contiguous(
        shape
    ):
        raise ValueError("a tensor that is not contiguous")
    return _Tensor(storage, shape)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(
        math.prod(max(1, size) for size in shape[axis + 1 :]) for axis in range(len(shape))
    )
