"""Files that run code when unpickled, in every place where a checkpoint could hold one; and the
control that unpickles them.
"""

from __future__ import annotations

import io
import json
import shlex
import subprocess
import sys
import tarfile
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

from ecrl_cli.checkpoint.format.canonical_json import canonical_json
from ecrl_cli.checkpoint.format.names import MODEL
from ecrl_cli.studies.frame.store_fixture import part_entry, sealed, sha256
from ecrl_cli.studies.hostile.store_fixture import MaliciousInput, RunFixture
from ecrl_cli.supervision.launch.child_environment import child_environment

# start of torch's oldest format
_MAGIC, _PROTOCOL = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", b"\x80\x02M\xe9\x03."


def payloads(canary: Path) -> dict[str, bytes]:
    """The payloads by name; unpickling any of them creates `canary`."""
    path = str(canary).encode("raw_unicode_escape")  # operand of pickle's opcode V
    quoted = shlex.quote(str(canary)).encode("raw_unicode_escape")
    reduce = b"cbuiltins\nopen\n(V" + path + b"\nVw\ntR."
    return {
        "reduce": reduce,
        "inst": b"(V" + path + b"\nVw\nibuiltins\nopen\n.",
        "obj": b"(cbuiltins\nopen\nV" + path + b"\nVw\no.",
        "stack global": (
            b"\x80\x04"
            + _short("builtins")
            + _short("open")
            + b"\x93("
            + b"V"
            + path
            + b"\nVw\nt"
            + b"R."
        ),
        "memo": b"\x80\x02cbuiltins\nopen\nq\x01h\x01(V" + path + b"\nVw\ntR0N.",
        "system": b"cos\nsystem\n(Vtouch " + quoted + b"\ntR.",
        "dotted": (
            b"\x80\x04"
            + _short("pathlib")
            + _short("Path.touch")
            + b"\x93("
            + b"cpathlib\nPosixPath\n(V"
            + path
            + b"\ntRtR."
        ),
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


def inputs() -> list[MaliciousInput]:
    found = []
    for name in payloads(Path("x")):
        found.append(
            MaliciousInput(
                "pickle as a part", name, "guard", ("parts", "hash"), partial(_in_place, name)
            )
        )
        found.append(
            MaliciousInput(
                "pickle, all hashes agree", name, "guard", ("schema",), partial(_forged, name)
            )
        )
    found.append(
        MaliciousInput(
            "pickle beside", "a .pt in a checkpoint's folder", "guard", ("parts",), _dropped
        )
    )
    found.append(
        MaliciousInput("pickle beside", "a .pt as a checkpoint", "newest", ("commit",), _alone)
    )
    for name in ("reduce", "torch zip", "torch legacy"):
        found.append(
            MaliciousInput(
                "format torch, all hashes agree",
                name,
                "load",
                ("StorageError",),
                partial(_committed, name),
            )
        )
    return found


def _payload(name: str, fixture: RunFixture) -> bytes:
    return payloads(fixture.canary)[name]


def _in_place(name: str, fixture: RunFixture) -> None:
    (fixture.group / MODEL).write_bytes(_payload(name, fixture))


def _forged(name: str, fixture: RunFixture) -> None:
    fixture.put_part(MODEL, _payload(name, fixture))


def _dropped(fixture: RunFixture) -> None:
    (fixture.group / "model.pt").write_bytes(_payload("torch zip", fixture))


def _alone(fixture: RunFixture) -> None:
    fixture.group.with_name("step_00000030.pt").write_bytes(_payload("torch zip", fixture))


def _committed(name: str, fixture: RunFixture) -> None:
    """A single file with format=torch, validly committed, so that only the restricted unpickler
    prevents its code from running.
    """
    data = _payload(name, fixture)
    target, sidecar = fixture.single.with_suffix(".pt"), fixture.single.with_suffix(".json")
    target.write_bytes(data)
    fixture.single.unlink()
    document = json.loads(sidecar.read_bytes())
    parts = document["manifest"]["parts"]
    entry = parts.pop(fixture.single.name)
    parts[target.name] = entry | part_entry(target.name, data, entry["tensors"])
    commit = sealed(
        document["commit"], manifest_sha256=sha256(canonical_json(document["manifest"]))
    )
    sidecar.write_bytes(canonical_json(document | {"commit": commit}))


CONTROL_S = 120.0
# A separate script: nothing in the package may load like this, which a test checks.
_SCRIPT = """
import sys, torch
for path in sys.argv[1:]:
    try:
        torch.load(path, weights_only=False)
    except BaseException:
        pass
"""


def run_control(folder: Path) -> dict[str, Any]:
    """Names of the payloads that ran."""
    files, canaries = [], {}
    for number, name in enumerate(payloads(Path("x"))):
        canaries[name] = folder / f"canary-{number}"
        files.append(folder / f"payload-{number}.pt")
        files[-1].write_bytes(payloads(canaries[name])[name])
    command = [sys.executable, "-c", _SCRIPT, *map(str, files)]
    subprocess.run(
        command, capture_output=True, timeout=CONTROL_S, env=child_environment(None, 1), check=False
    )
    return {
        "ran": [name for name, canary in canaries.items() if canary.exists()],
        "of": list(canaries),
    }
