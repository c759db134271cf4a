"""Malformed JSON as COMMIT, MANIFEST (with a matching COMMIT), sidecar, train.json and lease."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ecrl_cli.checkpoint.format.names import COMMIT, LEASE, TRAIN
from ecrl_cli.studies.hostile.malicious_input import MaliciousInput
from ecrl_cli.studies.hostile.store_fixture import Scene

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


def inputs() -> list[MaliciousInput]:
    found = []
    for name, text in TEXTS.items():
        found.append(MaliciousInput("COMMIT", name, "guard", ("commit",), partial(_as_commit, text)))
        found.append(MaliciousInput("MANIFEST", name, "guard", ("manifest",), partial(_as_manifest, text)))
        found.append(MaliciousInput("sidecar", name, "guard single", ("commit",), partial(_as_sidecar, text)))
        found.append(MaliciousInput("lease", name, "newest", ("StorageError",), partial(_as_lease, text)))
    found += [MaliciousInput("COMMIT", name, "guard", ("commit", "manifest"), partial(_value, change)) for name, change in VALUES.items()]
    found += [
        MaliciousInput("train.json", name, "guard", ("schema", "hash"), partial(_as_train, text)) for name, text in TEXTS.items() if name not in _FAIR
    ]
    return found


# The trainer interprets train.json; the integrity check only rejects what is not strict JSON.
_FAIR = ("a list", "null", "ten megabytes of text", "a lone surrogate")


def _as_commit(text: Callable[[], bytes], scene: Scene) -> None:
    (scene.group / COMMIT).write_bytes(text())


def _as_manifest(text: Callable[[], bytes], scene: Scene) -> None:
    scene.put_manifest(text())


def _as_sidecar(text: Callable[[], bytes], scene: Scene) -> None:
    scene.single.with_suffix(".json").write_bytes(text())


def _as_train(text: Callable[[], bytes], scene: Scene) -> None:
    scene.put_part(TRAIN, text())


def _as_lease(text: Callable[[], bytes], scene: Scene) -> None:
    (scene.group.parent / LEASE).write_bytes(text())


def _value(change: dict[str, object], scene: Scene) -> None:
    import json

    scene.put_commit(json.loads((scene.group / COMMIT).read_bytes()) | change)
