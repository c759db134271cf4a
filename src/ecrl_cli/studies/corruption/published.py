"""The published study: one fault in a committed checkpoint on real files, 400 trials of each kind
and 400 without; each mechanism asked alone.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ecrl_cli.checkpoint.format.canonical_json import digest, parse, parse_canonical
from ecrl_cli.checkpoint.format.hashing import tensor_digest
from ecrl_cli.checkpoint.format.image import TensorPlace
from ecrl_cli.checkpoint.format.manifest import Commit, Manifest, PartEntry, read_manifest
from ecrl_cli.checkpoint.format.names import COMMIT, MANIFEST, TRAIN
from ecrl_cli.checkpoint.format.tensor_table import header_length, places
from ecrl_cli.checkpoint.store.integrity import verify_checkpoint
from ecrl_cli.config.codec import decode
from ecrl_cli.studies.corruption.byte_faults import PUBLISHED_FAULTS, zeros_over_zeros
from ecrl_cli.studies.corruption.content import PUBLISHED, image_of, store_at, training_specs
from ecrl_cli.studies.corruption.in_memory import Files, outcome, verdict_of
from ecrl_cli.studies.frame.store_fixture import GUARD, files_under, part_digest
from ecrl_cli.studies.frame.study import Arm, StudyContext, Trial, asked

MECHANISMS = ("load", "digest", "sha")


def seen_by(files: Files) -> list[str]:
    """Which of MECHANISMS detect damage in a group checkpoint, by file name. load: JSON, schema and
    headers, no hash. digest: tensor by tensor, if the file loads. sha: of each file, if the record
    naming it can be read.
    """
    found = {"load": _load(files), "digest": _digest(files), "sha": _sha(files)}
    return [name for name in MECHANISMS if found[name]]


def _load(files: Files) -> bool:
    manifest = _manifest(files)
    if manifest is None or _commit(files) is None or _fails(lambda: parse(files[TRAIN])):
        return True
    return any(
        _places(files[name], entry) is None
        for name, entry in manifest.parts.items()
        if name != TRAIN
    )


def _digest(files: Files) -> bool:
    manifest = _manifest(files)
    for name, entry in manifest.parts.items() if manifest else ():
        for place in (_places(files[name], entry) or ()) if entry.tensors else ():
            spec = place.spec
            data = files[name][place.offset : place.offset + spec.nbytes]
            if tensor_digest(spec.dtype, spec.shape, data) != entry.tensors[spec.name].digest:
                return True
    return False


def _sha(files: Files) -> bool:
    commit = _json(files[COMMIT])
    if commit is not None:
        body = {key: value for key, value in commit.items() if key != "self_sha256"}
        if digest(body) != commit.get("self_sha256") or hashlib.sha256(
            files[MANIFEST]
        ).hexdigest() != commit.get("manifest_sha256"):
            return True
    manifest = _manifest(files)
    return (
        any(_other_digest(name, entry, files[name]) for name, entry in manifest.parts.items())
        if manifest
        else False
    )


def _other_digest(name: str, entry: PartEntry, data: bytes) -> bool:
    try:
        return part_digest(name, entry, data) != entry.digest
    except ValueError:
        return True


def _commit(files: Files) -> Commit | None:
    try:
        return decode(Commit, parse_canonical(files[COMMIT]))
    except (ValueError, TypeError, KeyError):
        return None


def _manifest(files: Files) -> Manifest | None:
    """The manifest, if it can be read and names the existing files."""
    try:
        manifest = read_manifest(files[MANIFEST])
    except ValueError:
        return None
    return manifest if manifest.parts.keys() == files.keys() - {COMMIT, MANIFEST} else None


def _json(data: bytes) -> dict[str, object] | None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _places(data: bytes, entry: PartEntry) -> list[TensorPlace] | None:
    """The tensors' offsets in a safetensors file, if its header fits the manifest and the file
    length.
    """
    try:
        length = header_length(data[:8], len(data))
        found = places(data[8 : 8 + length], entry)
    except ValueError:
        return None
    end = max((place.offset + place.spec.nbytes for place in found), default=8 + length)
    return found if end == len(data) else None


def _fails(read: Callable[[], object]) -> bool:
    try:
        read()
    except ValueError:
        return True
    return False


NOOP, CONTROL = "zeros over zeros", "none"
SHARE_NOOP = 8  # one trial of zeros over zeros per so many of each fault


def _trials(setting: StudyContext) -> list[Trial]:
    """The trials, faults interleaved."""
    count = setting.config.study.trials
    faults = [(number, fault) for number in range(count) for fault in (*PUBLISHED_FAULTS, CONTROL)]
    faults += [(number, NOOP) for number in range(-(-count // SHARE_NOOP))]
    return [
        Trial(
            f"published/{fault.replace(' ', '_')}/{number:04d}",
            {"arm": "published", "fault": fault},
        )
        for number, fault in faults
    ]


def _run(setting: StudyContext, trial: Trial) -> dict[str, Any]:
    """Commit, inject, verify."""
    rng, root, fault = setting.rng(trial.key), setting.scratch / "run", str(trial.facts["fault"])
    image = image_of(training_specs(*PUBLISHED, world_size=1), rng.getrandbits(48), 10)
    with store_at(root, "atomic_dirsync") as store:
        path = store.save(image, 0).path
        before = files_under(path)
        name = injected(path, fault, rng)
        after = files_under(path)
        verdict = verdict_of(lambda: verify_checkpoint(path, GUARD))
    changed = after != before
    found = {
        "outcome": outcome(verdict, changed),
        "changed": changed,
        "layer": verdict.layer,
        "reason": verdict.reason or verdict.untyped,
    }
    return found | {"file": name, "mechanisms": seen_by(after)}


def injected(path: Path, fault: str, rng: random.Random) -> str:
    """Inject into one random file of the checkpoint at `path`; returns its name. Asserts that
    nothing else changes.
    """
    if fault == CONTROL:
        return ""
    files = files_under(path)
    if fault == NOOP:
        files = {name: data for name, data in files.items() if bytes(3) in data}
    name = rng.choice(sorted(files))
    changed = (zeros_over_zeros if fault == NOOP else PUBLISHED_FAULTS[fault])(files[name], rng)
    overwrite(path / name, changed)
    assert files_under(path) == files_under(path) | {
        other: data for other, data in files.items() if other != name
    } | {name: changed}
    return name


def overwrite(path: Path, data: bytes) -> None:
    """Replace the content of `path` by `data`, asserting the same inode, owner and mode; otherwise
    a later rejection would prove nothing.
    """
    before = path.stat()
    with path.open("r+b") as file:
        file.write(data)
        file.truncate(len(data))
    after = path.stat()
    same = [
        (found.st_ino, found.st_mode, found.st_uid, found.st_nlink) for found in (before, after)
    ]
    assert same[0] == same[1] and after.st_size == len(data)


PUBLISHED_ARM = Arm("published", _trials, _run, asked("published"))
