"""Forged contents: malformed JSON in every record, headers of parts whose hashes all agree, and
names that escape, collide or are too long.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

from ecrl_cli.checkpoint.format.names import COMMIT, LATEST, LATEST_OK, LEASE, MODEL, TRAIN
from ecrl_cli.studies.frame.store_fixture import put_commit
from ecrl_cli.studies.hostile.store_fixture import MODEL_BYTES, MaliciousInput, RunFixture

DEEP = 1_000_000

TEXTS: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "a list": lambda: b"[]",
    "null": lambda: b"null",
    "a million deep": lambda: b"[" * DEEP + b"]" * DEEP,
    "a million deep, never closed": lambda: b'{"a":' * DEEP,
    "a hundred deep": lambda: b'{"attempt":' + b"[" * 100 + b"]" * 100 + b"}",
    "ten megabytes of text": lambda: b'{"run_id":"' + b"x" * 10_000_000 + b'"}',
    "duplicate keys": lambda: b'{"attempt":0,"attempt":0}',
    "1e999": lambda: b'{"attempt":1e999}',
    "NaN": lambda: b'{"attempt":NaN}',
    "2^64": lambda: b'{"attempt":18446744073709551616}',
    "a hundred thousand digits": lambda: b'{"attempt":' + b"9" * 100_000 + b"}",
    "a byte-order mark": lambda: b"\xef\xbb\xbf{}",
    "UTF-16": lambda: '{"attempt":0}'.encode("utf-16"),
    "not UTF-8": lambda: b'{"attempt":"\xff"}',
    "a lone surrogate": lambda: b'{"run_id":"\\ud800"}',
    "trailing bytes": lambda: b'{"attempt":0}\0\0',
    "a comment": lambda: b'{"attempt":0} // fine',
    "a pickle": lambda: b"cos\nsystem\n(Vtrue\ntR.",
}
# Invalid values in a commit record that is otherwise self-consistent.
VALUES: dict[str, dict[str, object]] = {
    "a negative step": {"global_step": -20},
    "a step that is a float": {"global_step": 20.0},
    "a step that is a truth": {"global_step": True},
    "another step": {"global_step": 30},
    "an unknown key": {"colour": "red"},
    "a path for a hash": {"manifest_sha256": "../../../../etc/passwd"},
    "a hash in capitals": {"manifest_sha256": "A" * 64},
    "another run": {"run_id": "6" * 64},
    "a predecessor that is a list": {"prev_commit_sha256": []},
    "a MAC that is null": {"hmac_sha256": None},
}


def json_inputs() -> list[MaliciousInput]:
    found = []
    for name, text in TEXTS.items():
        found.append(
            MaliciousInput("COMMIT", name, "guard", ("commit",), partial(_as_commit, text))
        )
        found.append(
            MaliciousInput("MANIFEST", name, "guard", ("manifest",), partial(_as_manifest, text))
        )
        found.append(
            MaliciousInput("sidecar", name, "guard single", ("commit",), partial(_as_sidecar, text))
        )
        found.append(
            MaliciousInput("lease", name, "newest", ("StorageError",), partial(_as_lease, text))
        )
    found += [
        MaliciousInput("COMMIT", name, "guard", ("commit", "manifest"), partial(_value, change))
        for name, change in VALUES.items()
    ]
    found += [
        MaliciousInput("train.json", name, "guard", ("schema", "hash"), partial(_as_train, text))
        for name, text in TEXTS.items()
        if name not in _FAIR
    ]
    return found


# The trainer interprets train.json; the integrity check only rejects what is not strict JSON.
_FAIR = ("a list", "null", "ten megabytes of text", "a lone surrogate")


def _as_commit(text: Callable[[], bytes], fixture: RunFixture) -> None:
    (fixture.group / COMMIT).write_bytes(text())


def _as_manifest(text: Callable[[], bytes], fixture: RunFixture) -> None:
    fixture.put_manifest(text())


def _as_sidecar(text: Callable[[], bytes], fixture: RunFixture) -> None:
    fixture.single.with_suffix(".json").write_bytes(text())


def _as_train(text: Callable[[], bytes], fixture: RunFixture) -> None:
    fixture.put_part(TRAIN, text())


def _as_lease(text: Callable[[], bytes], fixture: RunFixture) -> None:
    (fixture.group.parent / LEASE).write_bytes(text())


def _value(change: dict[str, object], fixture: RunFixture) -> None:
    put_commit(fixture.group, **change)


WEIGHT, SHAPE = "parameters.weight", [4194305, 4194305, 211106198978564]
Edit = Callable[[dict[str, Any]], object]

LENGTHS = {
    "zero": 0,
    "seven": 7,
    "longer than the file": 10**6,
    "2^32-1": 2**32 - 1,
    "2^63": 2**63,
    "2^64-1": 2**64 - 1,
    "the cap": 100 * 2**20,
}
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
    "offsets that are floats": (
        lambda header: header[WEIGHT].update(data_offsets=[8.0, 8.0 + MODEL_BYTES])
    ),
    "three offsets": lambda header: header[WEIGHT].update(data_offsets=[8, 16, 24]),
    "a missing tensor": lambda header: header.pop("buffers.steps"),
    "an injected name": lambda header: header.update({"module.__class__": header[WEIGHT]}),
    "metadata": lambda header: header.update(__metadata__={"format": "pt"}),
    "a hundred thousand tensors": lambda header: header.update(
        {f"t{number}": header[WEIGHT] for number in range(100_000)}
    ),
}
# False claims of the manifest itself about a part.
CLAIMS: dict[str, Callable[[dict[str, Any]], object]] = {
    "a thousand times its size": lambda part: part.update(
        bytes=part["bytes"] * 1000, chunk_sums=[0] * 80
    ),
    "a terabyte": lambda part: part.update(bytes=2**40, chunk_sums=[0]),
    "a negative size": lambda part: part.update(bytes=-1, chunk_sums=[]),
    "a chunk sum of 2^32": lambda part: part.update(chunk_sums=[2**32]),
    "17 dimensions": lambda part: part["tensors"][WEIGHT].update(shape=[1] * 17),
    "an overflowing shape": lambda part: part["tensors"][WEIGHT].update(shape=SHAPE),
    "an unknown dtype": lambda part: part["tensors"][WEIGHT].update(dtype="torch.os"),
    "a hundred thousand and one tensors": lambda part: part.update(
        tensors=dict.fromkeys(map(str, range(100_001)), part["tensors"][WEIGHT])
    ),
}


def header_inputs() -> list[MaliciousInput]:
    found = [
        MaliciousInput("header", f"length {name}", "guard", ("schema",), partial(_length, value))
        for name, value in LENGTHS.items()
    ]
    found += [
        MaliciousInput("header", name, "guard", ("schema",), partial(_header, edit))
        for name, edit in EDITS.items()
    ]
    found.append(
        MaliciousInput(
            "header", "a million deep", "guard", ("schema",), partial(_raw, b'{"a":' + b"[" * 10**6)
        )
    )
    found += [
        MaliciousInput(
            "manifest's claims",
            name,
            "guard",
            ("manifest", "parts", "schema"),
            partial(_claim, edit),
        )
        for name, edit in CLAIMS.items()
    ]
    found.append(
        MaliciousInput(
            "manifest's claims", "a file a thousand times its size", "guard", ("parts",), _large
        )
    )
    return found


def _length(length: int, fixture: RunFixture) -> None:
    data = (fixture.group / MODEL).read_bytes()
    fixture.put_part(MODEL, struct.pack("<Q", length) + data[8:])


def _header(edit: Edit, fixture: RunFixture) -> None:
    data = (fixture.group / MODEL).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    edit(header)
    text = json.dumps(header).encode()
    fixture.put_part(MODEL, struct.pack("<Q", len(text)) + text + data[8 + length :])


def _raw(text: bytes, fixture: RunFixture) -> None:
    fixture.put_part(MODEL, struct.pack("<Q", len(text)) + text)


def _claim(edit: Callable[[dict[str, Any]], object], fixture: RunFixture) -> None:
    fixture.forge(lambda manifest: edit(manifest["parts"][MODEL]))


def _large(fixture: RunFixture) -> None:
    with (fixture.group / MODEL).open("ab") as file:
        file.truncate(MODEL_BYTES * 1000)


PARTS = {
    "absolute": "/etc/passwd",
    "one up": "../step_00000010/model.safetensors",
    "many up": "../" * 20 + "etc/passwd",
    "a NUL": "model\0.safetensors",
    "a newline": "model\n.safetensors",
    "300 letters": "m" * 300,
    "empty": "",
    "a dot": ".",
    "two dots": "..",
    "CON": "CON",
    "con": "con",
    "a trailing dot": "model.safetensors.",
    "a look-alike": ("mоdel.safetensors"),  # noqa: RUF001 - the second letter is Cyrillic: that is the attack
    "another case": "MODEL.safetensors",
    "a backslash": "..\\model.safetensors",
}
ODD_STEPS = (
    "step_-0000020",
    "step_1e3",
    "step_000000020",
    "step_20",
    "step_9223372036854775808",
    "step_00000030.zip",
    "step_٠٠٠٠٠٠٣٠",
    "step_00000030\n",
)
MANY = 100_000


def name_inputs() -> list[MaliciousInput]:
    found = [
        MaliciousInput(
            "names of parts", name, "guard", ("manifest", "parts"), partial(_part, value)
        )
        for name, value in PARTS.items()
    ]
    found.append(
        MaliciousInput(
            "names of parts",
            "two that differ in case",
            "guard",
            ("manifest", "parts"),
            partial(_also, "Model.safetensors"),
        )
    )
    found.append(MaliciousInput("names of parts", "65 parts", "guard", ("manifest",), _many_parts))
    tensors = ("module.__class__", "__init__", "", "parameters." + "x" * 600, "parameters\0.weight")
    found += [
        MaliciousInput(
            "names of tensors",
            repr(name[:24]),
            "guard",
            ("manifest", "schema"),
            partial(_tensor, name),
        )
        for name in tensors
    ]
    found += [
        MaliciousInput(
            "names of checkpoints",
            repr(name)[1:-1],
            "newest",
            ("passed over",),
            partial(_odd, name),
        )
        for name in ODD_STEPS
    ]
    found.append(
        MaliciousInput("names of checkpoints", "a hundred thousand", "newest", ("commit",), _crowd)
    )
    for name, target in {
        "out": "../../outside",
        "to itself": LATEST_OK,
        "absolute": "/etc",
        "into the dark": "step_00000099",
    }.items():
        found.append(
            MaliciousInput(
                "pointers",
                f"latest_ok leads {name}",
                "newest",
                ("passed over",),
                partial(_pointer, target),
            )
        )
    found.append(
        MaliciousInput(
            "pointers", "latest.json names /etc/passwd", "newest", ("passed over",), _latest
        )
    )
    return found


def _part(name: str, fixture: RunFixture) -> None:
    fixture.forge(lambda manifest: manifest["parts"].update({name: manifest["parts"].pop(MODEL)}))


def _also(name: str, fixture: RunFixture) -> None:
    fixture.forge(lambda manifest: manifest["parts"].update({name: manifest["parts"][MODEL]}))


def _many_parts(fixture: RunFixture) -> None:
    fixture.forge(
        lambda manifest: manifest["parts"].update(
            {f"part{number}": manifest["parts"][MODEL] for number in range(62)}
        )
    )


def _tensor(name: str, fixture: RunFixture) -> None:
    def rename(manifest: dict[str, Any]) -> None:
        tensors = manifest["parts"][MODEL]["tensors"]
        tensors[name] = tensors.pop("parameters.weight")

    fixture.forge(rename)


def _odd(name: str, fixture: RunFixture) -> None:
    (fixture.group.parent / name).mkdir()


def _crowd(fixture: RunFixture) -> None:
    for number in range(1000, 1000 + MANY):
        (fixture.group.parent / f"step_{number:08d}").mkdir()


def _pointer(target: str, fixture: RunFixture) -> None:
    link = fixture.group.parent / LATEST_OK
    link.unlink()
    link.symlink_to(target)


def _latest(fixture: RunFixture) -> None:
    (fixture.group.parent / LATEST).write_bytes(b'{"path":"/etc/passwd"}')
