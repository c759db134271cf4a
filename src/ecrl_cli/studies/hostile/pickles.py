"""Files that run code when unpickled, in every place where a checkpoint could hold one."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from ecrl_cli.checkpoint.format.canonical_json import canonical_json, digest
from ecrl_cli.checkpoint.format.hashing import chunk_sums
from ecrl_cli.checkpoint.format.names import MODEL
from ecrl_cli.studies.hostile.malicious_input import MaliciousInput
from ecrl_cli.studies.hostile.payloads import payloads
from ecrl_cli.studies.hostile.store_fixture import Scene


def inputs() -> list[MaliciousInput]:
    found = []
    for name in payloads(Path("x")):
        found.append(MaliciousInput("pickle as a part", name, "guard", ("parts", "hash"), partial(_in_place, name)))
        found.append(MaliciousInput("pickle, all hashes agree", name, "guard", ("schema",), partial(_forged, name)))
    found.append(MaliciousInput("pickle beside", "a .pt in a checkpoint's folder", "guard", ("parts",), _dropped))
    found.append(MaliciousInput("pickle beside", "a .pt as a checkpoint", "newest", ("commit",), _alone))
    for name in ("reduce", "torch zip", "torch legacy"):
        found.append(MaliciousInput("format torch, all hashes agree", name, "load", ("StorageError",), partial(_committed, name)))
    return found


def _payload(name: str, scene: Scene) -> bytes:
    return payloads(scene.canary)[name]


def _in_place(name: str, scene: Scene) -> None:
    (scene.group / MODEL).write_bytes(_payload(name, scene))


def _forged(name: str, scene: Scene) -> None:
    scene.put_part(MODEL, _payload(name, scene))


def _dropped(scene: Scene) -> None:
    (scene.group / "model.pt").write_bytes(_payload("torch zip", scene))


def _alone(scene: Scene) -> None:
    scene.group.with_name("step_00000030.pt").write_bytes(_payload("torch zip", scene))


def _committed(name: str, scene: Scene) -> None:
    """A single file with format=torch, validly committed, so that only the restricted unpickler prevents its code from running."""
    import hashlib

    data = _payload(name, scene)
    target, sidecar = scene.single.with_suffix(".pt"), scene.single.with_suffix(".json")
    target.write_bytes(data)
    scene.single.unlink()
    document = json.loads(sidecar.read_bytes())
    parts = document["manifest"]["parts"]
    entry = parts.pop(scene.single.name)
    parts[target.name] = entry | {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), "chunk_crc32": list(chunk_sums(data))}
    body = document["commit"] | {"manifest_sha256": hashlib.sha256(canonical_json(document["manifest"])).hexdigest()}
    body.pop("self_sha256")
    sidecar.write_bytes(canonical_json(document | {"commit": body | {"self_sha256": digest(body)}}))
