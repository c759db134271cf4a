"""Ten files that run code when unpickled: each creates a given file. Written opcode by opcode."""

from __future__ import annotations

import io
import shlex
import tarfile
import zipfile
from pathlib import Path

_MAGIC, _PROTOCOL = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", b"\x80\x02M\xe9\x03."  # start of torch's oldest format


def payloads(canary: Path) -> dict[str, bytes]:
    """The payloads by name; unpickling any of them creates `canary`."""
    path = str(canary).encode("raw_unicode_escape")  # operand of pickle's opcode V
    quoted = shlex.quote(str(canary)).encode("raw_unicode_escape")
    reduce = b"cbuiltins\nopen\n(V" + path + b"\nVw\ntR."
    return {
        "reduce": reduce,
        "inst": b"(V" + path + b"\nVw\nibuiltins\nopen\n.",
        "obj": b"(cbuiltins\nopen\nV" + path + b"\nVw\no.",
        "stack global": b"\x80\x04" + _short("builtins") + _short("open") + b"\x93(" + b"V" + path + b"\nVw\nt" + b"R.",
        "memo": b"\x80\x02cbuiltins\nopen\nq\x01h\x01(V" + path + b"\nVw\ntR0N.",
        "system": b"cos\nsystem\n(Vtouch " + quoted + b"\ntR.",
        "dotted": b"\x80\x04" + _short("pathlib") + _short("Path.touch") + b"\x93(" + b"cpathlib\nPosixPath\n(V" + path + b"\ntRtR.",
        "torch zip": _zip(reduce),
        "torch legacy": _MAGIC + _PROTOCOL + reduce,
        "torch tar": _tar(reduce),
    }


def _short(text: str) -> bytes:
    return b"\x8c" + bytes([len(text)]) + text.encode()


def _zip(data: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("archive/data.pkl", data)
        archive.writestr("archive/version", "3\n")
    return made.getvalue()


def _tar(data: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:") as archive:
        for name in ("storages", "tensors", "pickle"):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return made.getvalue()
