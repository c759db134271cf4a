"""Integrity checks with a layer left out, patched into this process for a trial: the structural
rows and random faults again under each.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

from ecrl_cli.checkpoint.format import canonical_json, manifest, tensor_table
from ecrl_cli.checkpoint.format.image import DTYPES, TensorPlace, TensorSpec
from ecrl_cli.checkpoint.format.manifest import Commit, Manifest, PartEntry
from ecrl_cli.checkpoint.store import catalog, integrity
from ecrl_cli.storage.fs import Fs
from ecrl_cli.storage.safe_read import open_regular
from ecrl_cli.studies.corruption import byte_faults, structural
from ecrl_cli.studies.corruption.in_memory import outcome, verify_files
from ecrl_cli.studies.frame.study import StudyContext, Trial, planted_arm

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
    self.found.commit = replace(
        commit, run_id=told.run_id, attempt=told.attempt, global_step=told.global_step
    )
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
        spec = TensorSpec(
            name, entry.dtype if entry.dtype in DTYPES else "torch.uint8", entry.shape
        )
        found.append(TensorPlace(spec, start + told[name]["data_offsets"][0]))
    return sorted(found, key=lambda place: place.offset)


@contextmanager
def _layer_lets_through(name: str) -> Iterator[None]:
    yield


def _newest_of_all(
    fs: Fs, root: Any, examine: Callable[[Any], integrity.IntegrityReport]
) -> catalog.ResumeChoice:
    """Trusts the newest name."""
    found = catalog.entries(fs, root)
    return (
        replace(_newest_valid(fs, root, examine), report=examine(found[0].path))
        if found
        else catalog.ResumeChoice(None, ())
    )


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _always(*_: Any) -> bool:
    return True


MUTANTS: dict[str, Patches] = {
    "any spelling of COMMIT": [
        (integrity, "parse_canonical", _parse),
        (manifest, "parse_canonical", _parse),
    ],
    "COMMIT's own hash": [(integrity, "read_commit", _commit_unchecked)],
    "whose run it is": [(integrity._Reader, "take_commit", _of_any_run)],
    "the step in the name": [(integrity._Reader, "expect_step", _nothing)],
    "MANIFEST against COMMIT": [(integrity._Reader, "take_manifest", _matching_any_commit)],
    "the manifest's run, attempt and step": [(integrity._Reader, "take_manifest", _of_any_step)],
    "limits and names in the manifest": [(integrity, "read_manifest", _manifest_unchecked)],
    "the set of names": [(integrity._Reader, "expect", _nothing)],
    "regular files of one name": [(integrity, "open_regular", _open_anything)],
    "sizes": [(integrity._Reader, "open_parts", _of_any_size)],
    "all hashes of files": [(integrity, "expect_digest", _nothing)],
    "hashes of tensor files": [(integrity, "_expect_root", _nothing)],
    "headers": [(tensor_table, "places", _places_as_told), (integrity, "expect_places", _nothing)],
    "train.json's JSON": [(integrity, "parse", _nothing)],
    "tensor digests": [(integrity, "expect_tensor", _nothing)],
    "NaN": [(tensor_table, "all_finite", _always), (integrity, "all_finite", _always)],
    "contents": [(integrity, "_check_contents", _nothing)],
    "errors as refusals": [(integrity, "layer", _layer_lets_through)],
    "recovery asks the integrity check": [(catalog, "newest_valid", _newest_of_all)],
}

# A layer backed by another is tested by leaving out both.
BACKED = {
    "limits and names in the manifest": "the set of names",
    "hashes of tensor files": "tensor digests",
}


def left_out(name: str) -> tuple[str, ...]:
    """The layers of the mutant `name`: one, or two joined by " + "."""
    return tuple(name.split(" + "))


def every_name() -> list[str]:
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


PER_FAULT = 10


def _run(setting: StudyContext, trial: Trial) -> dict[str, Any]:
    """The damage that the mutant lets through, and the damage that another layer than usual
    rejects. The cases are the same for every mutant.
    """
    mutant = str(trial.facts["mutant"])
    seen: Counter[str] = Counter()
    elsewhere: Counter[str] = Counter()
    wrong: list[str] = []
    for case in _rows(setting):
        right = structural.row_of(case)
        found = structural.run(setting, case, partial(planted, mutant))
        seen["cases"] += 1
        if found["as_expected"]:
            continue
        if (
            found["layer"]
            and found["layer"] != right.layer
            and found["recovered"] == right.recovers
            and not found["untyped"]
        ):
            elsewhere[found["layer"]] += 1
        else:
            seen["untyped" if found["untyped"] else "undetected"] += 1
            wrong.append(str(case.facts["row"]))
    for fault in byte_faults.RANDOM_FAULTS:
        _random(setting, mutant, fault, seen, elsewhere, wrong)
    return {
        "cases": seen["cases"],
        "undetected": seen["undetected"],
        "untyped": seen["untyped"],
        "elsewhere": dict(sorted(elsewhere.items())),
        "first": wrong[:1],
    }


def _rows(setting: StudyContext) -> list[Trial]:
    """Each row of the group layout, once."""
    return [
        trial
        for trial in structural.trials(setting)
        if trial.facts["layout"] == "group" and trial.key.endswith("/00")
    ]


def _random(
    setting: StudyContext,
    mutant: str,
    fault: str,
    seen: Counter[str],
    elsewhere: Counter[str],
    wrong: list[str],
) -> None:
    rng = setting.rng(f"planted/{fault}")
    name, files = byte_faults.two_ranks(setting, rng.getrandbits(48), single=False)
    for _ in range(PER_FAULT):
        changed, where = byte_faults.injured(files, fault, rng)
        usual = verify_files(changed, name)
        with planted(mutant):
            verdict = verify_files(changed, name)
        seen["cases"] += 1
        ended = outcome(verdict, changed != files)
        if ended in ("silent_wrong", "untyped"):
            seen["undetected" if ended == "silent_wrong" else "untyped"] += 1
            wrong.append(f"{fault} of {where}")
        elif verdict.layer != usual.layer:
            elsewhere[verdict.layer] += 1


PLANTED = planted_arm(every_name(), _run, "mutant")
