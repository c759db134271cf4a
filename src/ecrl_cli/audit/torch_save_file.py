"""The tensors of a file of torch.save, without torch and without executing what the file holds: the
zip format and the one before it.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import IO, Any, cast

import numpy as np

from ecrl_cli.audit.inert_pickle import Instance, Named, Pairs, bytes_of, called, read_pickle
from ecrl_cli.checkpoint.format.hashing import streamed, tensor_prefix
from ecrl_cli.checkpoint.format.names import DIGEST
from ecrl_cli.checkpoint.format.torch_file import Read, Window

MAX_PICKLE = 64 * 2**20
MAX_DIRECTORY = 16 * 2**20  # of the zip
# bytes of a tensor, or of the part of its storage, that is not contiguous and is read into memory
MAX_STRIDED = 512 * 2**20
_PIECE = 4 * 2**20
_LOCAL_HEADER = 30
_MAGIC = 0x1950A86A20F9469CFC6C

# Bytes per element, of the types that tensors are made of.
WIDTHS = {
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
    **dict.fromkeys(("float32", "int32", "uint32", "complex32"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(
        (
            "int8",
            "uint8",
            "bool",
            "float8_e4m3fn",
            "float8_e5m2",
            "float8_e4m3fnuz",
            "float8_e5m2fnuz",
            "float8_e8m0fnu",
        ),
        1,
    ),
    "complex128": 16,
}
_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
    "UntypedStorage": "uint8",
}
# Bytes of a number that has a sign bit of its own: of a complex one, of each of its parts.
_SIGNED = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "complex128": 8,
    "complex64": 4,
    "complex32": 2,
}


@dataclass(frozen=True)
class Storage:
    """Memory of a file that tensors refer to. `dtype`: of its elements, uint8 where tensors say it
    themselves. `within`: the memory itself, where it stands in the pickle.
    """

    dtype: str
    key: str
    nbytes: int
    within: bytes | None = None


@dataclass(frozen=True)
class Tensor:
    """A tensor of the file: `offset` and `strides` in elements of its storage. `conjugated`,
    `negated`: bits that torch keeps beside the memory.
    """

    dtype: str
    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    conjugated: bool = False
    negated: bool = False

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * WIDTHS[self.dtype]


class TorchSaveFile:
    """A file of torch.save in `size` bytes that `read` gives. `value`: what it holds, inert, with
    `Tensor` for tensors.

    ValueError for what is no such file. `member`: the pickle's name in the zip. `within`: the bytes
    are part of another file's pickle.
    """

    def __init__(
        self, read: Read, size: int, member: str = "data.pkl", *, within: bool = False
    ) -> None:
        self._read, self._size = read, size
        # of a storage: its first byte and number of bytes
        self._places: dict[str, tuple[int, int]] = {}
        self._types: dict[str, str] = {}  # the dtype of each storage that the pickle names
        self._digests: dict[Tensor | Storage, str] = {}
        self.others: list[zipfile.ZipInfo] = []  # members that belong to no tensor
        self._left = 8 * size + 2**26  # bytes to hash: views of one storage may be many
        self._calls = CALLS if within else CALLS | {"torch.storage _load_from_bytes": self._pickled}
        if read(0, 2) == b"PK":
            self.value = self._zipped(member)
        else:
            self.value = self._before_zip()

    def _zipped(self, member: str) -> Any:
        window, data = Window(self._read, self._size, MAX_DIRECTORY), b""
        try:
            with zipfile.ZipFile(cast(IO[bytes], window)) as archive:
                infos = archive.infolist()
                prefix = next(
                    (
                        info.filename.removesuffix(member)
                        for info in infos
                        if info.filename.endswith("/" + member)
                    ),
                    None,
                )
                if prefix is None:
                    raise ValueError("a zip file without a pickle of torch")
                window.allow(MAX_PICKLE + 2**16)
                for info in infos:
                    name = info.filename.removeprefix(prefix)
                    if name.startswith("data/"):
                        self._places[name.removeprefix("data/")] = self._place(info)
                    elif name == member:
                        data = _member(archive, info, MAX_PICKLE)
                    elif name == "byteorder" and _member(archive, info, 16) != b"little":
                        raise ValueError("not in little-endian byte order")
                    else:
                        self.others.append(info)
        except zipfile.BadZipFile as error:
            raise ValueError(f"a damaged zip file ({str(error)[:80]})") from error
        return read_pickle(data, self._persistent, self._calls)

    def _place(self, info: zipfile.ZipInfo) -> tuple[int, int]:
        header = self._read(info.header_offset, _LOCAL_HEADER)
        start = (
            info.header_offset
            + _LOCAL_HEADER
            + int.from_bytes(header[26:28], "little")
            + int.from_bytes(header[28:30], "little")
        )
        if (
            header[:4] != b"PK\x03\x04"
            or info.compress_type != zipfile.ZIP_STORED
            or start + info.file_size > self._size
        ):
            raise ValueError(f"member {info.filename[:80]!r} cannot be read in place")
        return start, info.file_size

    def _before_zip(self) -> Any:
        """The format before torch 1.6: pickles one after another, then the storages. A plain pickle
        too.
        """
        head = io.BytesIO(self._read(0, min(self._size, MAX_PICKLE)))
        first = read_pickle(head, self._persistent, self._calls)
        if first != _MAGIC:
            return first
        read_pickle(head)  # version of the format
        read_pickle(head)  # byte order and sizes of the machine
        value = read_pickle(head, self._persistent, self._calls)
        keys, at = read_pickle(head), head.tell()
        for key in map(str, keys):
            width = WIDTHS[self._types[key]]
            nbytes = int.from_bytes(self._read(at, 8), "little") * width
            self._places[key] = (at + 8, nbytes)
            at += 8 + nbytes
            if at > self._size:
                raise ValueError("it ends early")
        return value

    def _pickled(self, data: Any) -> Storage:
        """torch.storage._load_from_bytes: the storage of a tensor that was pickled without
        torch.save, a file of torch in itself.
        """
        data = bytes_of(data)
        if not isinstance(data, bytes):
            raise ValueError("a storage of no bytes")
        self._charge(len(data))
        inner = TorchSaveFile(in_memory(data), len(data), within=True)
        if not isinstance(inner.value, Storage):
            raise ValueError("a storage that is none")
        return replace(inner.value, key="", within=b"".join(inner.content(inner.value)))

    def _charge(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise ValueError("tensors that overlap too much")

    def _persistent(self, identity: Any) -> Storage:
        if (
            not isinstance(identity, tuple)
            or len(identity) < 5
            or identity[0] != "storage"
            or not isinstance(identity[1], Named)
        ):
            raise ValueError("data outside that is no storage")
        dtype = _STORAGES.get(identity[1].name.rpartition(" ")[2])
        if dtype is None or type(identity[4]) is not int or identity[4] < 0:
            raise ValueError(f"storage {identity[1].name[:60]}")
        self._types[str(identity[2])] = dtype
        return Storage(dtype, str(identity[2]), identity[4] * WIDTHS[dtype])

    def digest(self, tensor: Tensor | Storage) -> str:
        """The digest of dtype, shape and logical content, whatever the strides. ValueError where
        the file does not hold it.
        """
        if tensor not in self._digests:
            self._digests[tensor] = streamed(DIGEST, _prefix(tensor), self.content(tensor))
        return self._digests[tensor]

    def content(self, tensor: Tensor | Storage) -> Iterator[bytes]:
        """The bytes of its elements in order, in pieces."""
        if isinstance(tensor, Storage):
            tensor = Tensor("uint8", tensor, 0, (tensor.nbytes,), (1,))
        memory = tensor.storage.within
        start, nbytes = self._places.get(tensor.storage.key, (0, 0))
        if memory is not None:
            start, nbytes = 0, len(memory)
        width = WIDTHS[tensor.dtype]
        last = tensor.offset + sum(
            (size - 1) * stride for size, stride in zip(tensor.shape, tensor.strides, strict=True)
        )
        self._charge(tensor.nbytes)
        if not tensor.nbytes:
            return
        if (last + 1) * width > nbytes:
            raise ValueError("a tensor beyond its storage")
        start += tensor.offset * width
        if _contiguous(tensor) and not (tensor.conjugated or tensor.negated):
            for at in range(start, start + tensor.nbytes, _PIECE):
                yield self._exactly(at, min(_PIECE, start + tensor.nbytes - at), memory)
            return
        span = (last - tensor.offset + 1) * width
        if max(span, tensor.nbytes) > MAX_STRIDED:
            raise ValueError(f"a tensor of {tensor.nbytes} bytes that is not contiguous")
        yield _strided(tensor, self._exactly(start, span, memory))

    def _exactly(self, at: int, count: int, memory: bytes | None) -> bytes:
        data = self._read(at, count) if memory is None else memory[at : at + count]
        if len(data) != count:
            raise ValueError("it ends early")
        return data


def in_memory(data: bytes) -> Read:
    """Reads pieces of a file that is in memory."""
    return lambda at, count: data[at : at + count]


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, limit: int) -> bytes:
    if info.file_size > limit:
        raise ValueError(
            f"member {info.filename[:80]!r} has {info.file_size} bytes, at most {limit} are read"
        )
    with archive.open(info) as file:
        return file.read(limit)


def _prefix(tensor: Tensor | Storage) -> bytes:
    return tensor_prefix(tensor.dtype, tensor.shape) if isinstance(tensor, Tensor) else b"storage"


def _contiguous(tensor: Tensor) -> bool:
    due = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if size != 1 and stride != due:
            return False
        due *= size
    return True


def _strided(tensor: Tensor, data: bytes) -> bytes:
    """The logical content from the part of the storage that holds it."""
    width = WIDTHS[tensor.dtype]
    memory = np.frombuffer(data, dtype=np.dtype(("V", width)))
    strides = tuple(stride * width for stride in tensor.strides)
    array = np.ascontiguousarray(
        np.lib.stride_tricks.as_strided(memory, tensor.shape, strides, writeable=False)
    ).reshape(-1)
    part = _SIGNED.get(tensor.dtype, 0)
    if not part:
        return array.tobytes()
    bits = array.view(np.dtype(f"u{part}")).copy()
    sign = bits.dtype.type(1 << (8 * part - 1))
    if tensor.negated:
        bits ^= sign
    if tensor.conjugated:
        bits[1::2] ^= sign  # imaginary parts
    return bits.tobytes()


def _tensor_v2(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> Tensor:
    """torch._utils._rebuild_tensor_v2; `rest`: requires_grad, hooks, and the bits for conjugation
    and sign if one is set.
    """
    return _tensor(
        storage,
        getattr(storage, "dtype", ""),
        offset,
        shape,
        strides,
        rest[2] if len(rest) > 2 else None,
    )


def _tensor_v3(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> Tensor:
    """torch._utils._rebuild_tensor_v3; `rest`: requires_grad, hooks, dtype, bits."""
    return _tensor(
        storage,
        rest[2].name.rpartition(" ")[2],
        offset,
        shape,
        strides,
        rest[3] if len(rest) > 3 else None,
    )


def _tensor(storage: Any, dtype: str, offset: Any, shape: Any, strides: Any, bits: Any) -> Tensor:
    if not isinstance(storage, Storage) or dtype not in WIDTHS:
        raise ValueError(f"a tensor of {dtype[:40]!r}")
    shape = shape.arguments[0] if isinstance(shape, Instance) else shape  # torch.Size
    numbers = (offset, *shape, *strides)
    if (
        len(shape) != len(strides)
        or len(shape) > 64
        or not all(type(number) is int and 0 <= number < 2**62 for number in numbers)
    ):
        raise ValueError("a tensor of no shape")
    said = {key for key, value in bits if value is True} if isinstance(bits, Pairs) else set()
    return Tensor(
        dtype, storage, offset, tuple(shape), tuple(strides), "conj" in said, "neg" in said
    )


def _of_type(function: Any, kind: Any, arguments: Any, state: Any) -> Any:
    """torch._tensor._rebuild_from_type_v2: a tensor of a subclass, or with attributes."""
    inner = called(function, arguments, CALLS)
    plain = kind.name in (
        "torch Tensor",
        "torch.nn.parameter Parameter",
        "torch.nn.parameter Buffer",
    )
    return inner if plain else Instance(kind.name, (inner,), state)


CALLS: dict[str, Callable[..., Any]] = {
    "torch._utils _rebuild_tensor": _tensor_v2,
    "torch._utils _rebuild_tensor_v2": _tensor_v2,
    "torch._utils _rebuild_tensor_v3": _tensor_v3,
    "torch._utils _rebuild_parameter": lambda data, *rest: data,
    "torch._utils _rebuild_parameter_with_state": lambda data, *rest: data,
    "torch._tensor _rebuild_from_type_v2": _of_type,
}
