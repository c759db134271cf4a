"""Forged headers of safetensors parts, in checkpoints whose hashes all agree."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

from ecrl_cli.checkpoint.format.canonical_json import canonical_json
from ecrl_cli.checkpoint.format.names import MODEL
from ecrl_cli.studies.hostile.malicious_input import MaliciousInput
from ecrl_cli.studies.hostile.store_fixture import MODEL_BYTES, Scene

WEIGHT, SHAPE = "parameters.weight", [4194305, 4194305, 211106198978564]
Edit = Callable[[dict[str, Any]], object]

LENGTHS = {"zero": 0, "seven": 7, "longer than the file": 10**6, "2^32-1": 2**32 - 1, "2^63": 2**63, "2^64-1": 2**64 - 1, "the cap": 100 * 2**20}
EDITS: dict[str, Edit] = {
    "an unknown dtype": lambda header: header[WEIGHT].update(dtype="Q128"),
    "another dtype": lambda header: header[WEIGHT].update(dtype="I32"),
    "a shape that overflows": lambda header: header[WEIGHT].update(shape=SHAPE),
    "a shape of a million dimensions": lambda header: header[WEIGHT].update(shape=[1] * 10**6),
    "a negative shape": lambda header: header[WEIGHT].update(shape=[-1024]),
    "an overlap": lambda header: header[WEIGHT].update(data_offsets=[0, MODEL_BYTES]),
    "a gap": lambda header: header[WEIGHT].update(data_offsets=[16, 16 + MODEL_BYTES]),
    "not aligned": lambda header: header[WEIGHT].update(data_offsets=[9, 9 + MODEL_BYTES]),
    "far outside": lambda header: header[WEIGHT].update(data_offsets=[2**62, 2**62 + MODEL_BYTES]),
    "negative offsets": lambda header: header[WEIGHT].update(data_offsets=[-8, MODEL_BYTES - 8]),
    "offsets that are floats": lambda header: header[WEIGHT].update(data_offsets=[8.0, 8.0 + MODEL_BYTES]),
    "three offsets": lambda header: header[WEIGHT].update(data_offsets=[8, 16, 24]),
    "a missing tensor": lambda header: header.pop("buffers.steps"),
    "an injected name": lambda header: header.update({"module.__class__": header[WEIGHT]}),
    "metadata": lambda header: header.update(__metadata__={"format": "pt"}),
    "a hundred thousand tensors": lambda header: header.update({f"t{number}": header[WEIGHT] for number in range(100_000)}),
}
# False claims of the manifest itself about a part.
CLAIMS: dict[str, Callable[[dict[str, Any]], object]] = {
    "a thousand times its size": lambda part: part.update(bytes=part["bytes"] * 1000, chunk_crc32=[0] * 80),
    "a terabyte": lambda part: part.update(bytes=2**40, chunk_crc32=[0]),
    "a negative size": lambda part: part.update(bytes=-1, chunk_crc32=[]),
    "a chunk sum of 2^32": lambda part: part.update(chunk_crc32=[2**32]),
    "17 dimensions": lambda part: part["tensors"][WEIGHT].update(shape=[1] * 17),
    "an overflowing shape": lambda part: part["tensors"][WEIGHT].update(shape=SHAPE),
    "an unknown dtype": lambda part: part["tensors"][WEIGHT].update(dtype="torch.os"),
    "a hundred thousand and one tensors": lambda part: part.update(tensors=dict.fromkeys(map(str, range(100_001)), part["tensors"][WEIGHT])),
}


def inputs() -> list[MaliciousInput]:
    found = [MaliciousInput("header", f"length {name}", "guard", ("schema",), partial(_length, value)) for name, value in LENGTHS.items()]
    found += [MaliciousInput("header", name, "guard", ("schema",), partial(_header, edit)) for name, edit in EDITS.items()]
    found.append(MaliciousInput("header", "a million deep", "guard", ("schema",), partial(_raw, b'{"a":' + b"[" * 10**6)))
    found += [
        MaliciousInput("manifest's claims", name, "guard", ("manifest", "parts", "schema"), partial(_claim, edit)) for name, edit in CLAIMS.items()
    ]
    found.append(MaliciousInput("manifest's claims", "a file a thousand times its size", "guard", ("parts",), _large))
    return found


def _length(length: int, scene: Scene) -> None:
    data = (scene.group / MODEL).read_bytes()
    scene.put_part(MODEL, struct.pack("<Q", length) + data[8:])


def _header(edit: Edit, scene: Scene) -> None:
    data = (scene.group / MODEL).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    edit(header)
    text = json.dumps(header).encode()
    scene.put_part(MODEL, struct.pack("<Q", len(text)) + text + data[8 + length :])


def _raw(text: bytes, scene: Scene) -> None:
    scene.put_part(MODEL, struct.pack("<Q", len(text)) + text)


def _claim(edit: Callable[[dict[str, Any]], object], scene: Scene) -> None:
    value = scene.manifest()
    edit(value["parts"][MODEL])
    scene.put_manifest(canonical_json(value))


def _large(scene: Scene) -> None:
    with (scene.group / MODEL).open("ab") as file:
        file.truncate(MODEL_BYTES * 1000)
