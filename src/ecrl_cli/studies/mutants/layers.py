"""Integrity checks with a layer left out, patched into this process for a trial; a study must find each."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from ecrl_cli.checkpoint.format import canonical_json, finite, manifest, tensor_table
from ecrl_cli.checkpoint.format.image import DTYPES, TensorPlace, TensorSpec
from ecrl_cli.checkpoint.format.manifest import Commit, Manifest, PartEntry
from ecrl_cli.checkpoint.format.names import must_be_finite
from ecrl_cli.checkpoint.store import catalog, integrity
from ecrl_cli.storage.fs import Fs
from ecrl_cli.storage.safe_read import open_regular, pieces

Patches = list[tuple[Any, str, Any]]  # whose, what, by what

_take_commit, _take_manifest = integrity._Reader.take_commit, integrity._Reader.take_manifest
_parse, _newest_valid = canonical_json.parse, catalog.newest_valid


def _commit_unchecked(data: bytes, *_: Any) -> Commit:
    told: Commit = manifest._decoded(Commit, canonical_json.parse_canonical(data))
    return told


def _manifest_unchecked(data: bytes) -> Manifest:
    told: Manifest = manifest._decoded(Manifest, _parse(data))
    return told


def _of_any_run(self: Any, data: bytes) -> None:
    self.config = replace(self.config, run_id="")
    _take_commit(self, data)


def _matching_any_commit(self: Any, data: bytes) -> None:
    """Accepts any commit as naming this manifest."""
    self.found.commit = replace(self.found.commit, manifest_sha256=hashlib.sha256(data).hexdigest())
    _take_manifest(self, data)


def _of_any_step(self: Any, data: bytes) -> None:
    """Accepts manifest and commit of different runs, attempts and steps."""
    commit, told = self.found.commit, _manifest_unchecked(data)
    self.found.commit = replace(commit, run_id=told.run_id, attempt=told.attempt, global_step=told.global_step)
    _take_manifest(self, data)
    self.found.commit = commit


def _of_any_size(self: Any, names: list[str]) -> None:
    for name in names:
        fd, _ = open_regular(self.fs, self.folder, name, trust_owner=True)
        self.stack.callback(self.fs.close, fd)
        self.found.files[name] = fd


def _open_anything(fs: Fs, folder: int, name: str, *, trust_owner: bool) -> tuple[int, int]:
    fd = fs.open_at(folder, name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    return fd, fs.fstat(fd).st_size


def _places_as_told(header: bytes, part: PartEntry) -> list[TensorPlace]:
    """Uses the header's offsets under the manifest's names without further checks."""
    start, told, found = 8 + len(header), _parse(header), []
    for name, entry in part.tensors.items():
        spec = TensorSpec(name, entry.dtype if entry.dtype in DTYPES else "torch.uint8", entry.shape)
        found.append(TensorPlace(spec, start + told[name]["data_offsets"][0]))
    return found


def _tensor_unchecked(fs: Fs, fd: int, entry: PartEntry, place: TensorPlace, setting: str) -> None:
    """Checks for NaN, but not the digest."""
    spec = place.spec
    data = b"".join(pieces(fs, fd, place.offset, place.offset + spec.nbytes))
    if must_be_finite(spec.name, setting) and not finite.all_finite(spec.dtype, data):
        raise integrity.CheckpointRejected("finite", "holds NaN or infinity")


@contextmanager
def _layer_lets_through(name: str) -> Iterator[None]:
    yield


def _newest_of_all(fs: Fs, root: Any, examine: Callable[[Any], integrity.IntegrityReport]) -> catalog.ResumeChoice:
    """Trusts the newest name."""
    found = catalog.entries(fs, root)
    return replace(_newest_valid(fs, root, examine), report=examine(found[0].path)) if found else catalog.ResumeChoice(None, ())


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _always(*_: Any) -> bool:
    return True


MUTANTS: dict[str, Patches] = {
    "any spelling of COMMIT": [(integrity, "parse_canonical", _parse), (manifest, "parse_canonical", _parse)],
    "COMMIT's own hash": [(integrity, "read_commit", _commit_unchecked)],
    "whose run it is": [(integrity._Reader, "take_commit", _of_any_run)],
    "the step in the name": [(integrity._Reader, "expect_step", _nothing)],
    "MANIFEST against COMMIT": [(integrity._Reader, "take_manifest", _matching_any_commit)],
    "the manifest's run, attempt and step": [(integrity._Reader, "take_manifest", _of_any_step)],
    "limits and names in the manifest": [(integrity, "read_manifest", _manifest_unchecked)],
    "the set of names": [(integrity._Reader, "expect", _nothing)],
    "regular files of one name": [(integrity, "open_regular", _open_anything)],
    "sizes": [(integrity._Reader, "open_parts", _of_any_size)],
    "all hashes of files": [(integrity, "_expect_hash", _nothing)],
    "hashes of tensor files": [(integrity, "_check_hash", _nothing)],
    "headers": [(tensor_table, "places", _places_as_told)],
    "train.json's JSON": [(integrity, "parse", _nothing)],
    "tensor digests": [(integrity, "_check_tensor", _tensor_unchecked)],
    "NaN": [(finite, "all_finite", _always)],
    "contents": [(integrity, "_check_contents", _nothing)],
    "errors as refusals": [(integrity, "layer", _layer_lets_through)],
    "recovery asks the integrity check": [(catalog, "newest_valid", _newest_of_all)],
}

# A layer backed by another is tested by leaving out both.
BACKED = {
    "limits and names in the manifest": "the set of names",
    "hashes of tensor files": "tensor digests",
    "headers": "tensor digests",
}


def left_out(name: str) -> tuple[str, ...]:
    """The layers of the mutant `name`: one, or two joined by " + "."""
    return tuple(name.split(" + "))


def names() -> list[str]:
    """Every single layer, then every pair of a backed layer and its backing one."""
    return [*MUTANTS, *(f"{name} + {back}" for name, back in BACKED.items())]


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Within the context this process checks without the layers of mutant `name`."""
    with ExitStack() as stack:
        for each in left_out(name):
            for owner, attribute, replacement in MUTANTS[each]:
                stack.enter_context(patch.object(owner, attribute, replacement))
        yield
