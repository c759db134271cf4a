"""Rows for one layout only: a group's own files, self-consistent forgeries, and the single file's sidecar."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ecrl_cli.checkpoint.format.hashing import tensor_sha256
from ecrl_cli.checkpoint.format.image import header_of
from ecrl_cli.checkpoint.format.names import COMMIT, MANIFEST, MODEL, OPTIMIZER, TRAIN
from ecrl_cli.studies.corruption import structural_cases
from ecrl_cli.studies.corruption.faults import put
from ecrl_cli.studies.corruption.store_fixture import Scene, forge, recommit
from ecrl_cli.studies.corruption.structural_cases import ANY_LAYOUT, Row, Tamper, rolled_back

_NAN = b"\x00\x00\xc0\x7f"
_NOBODY = "6" * 64

Edit = Callable[[dict[str, Any]], object]


def forged(edit: Edit) -> Tamper:
    return lambda scene: forge(scene.newest, edit)


def without(part: str) -> Edit:
    return lambda manifest: manifest["parts"].pop(part)


def renamed(part: str, name: str) -> Edit:
    """The manifest lists a part twice: under its own name, and as `name`."""
    return lambda manifest: manifest["parts"].update({name: manifest["parts"][part]})


def another_size(manifest: dict[str, Any]) -> None:
    manifest["parts"][MODEL]["bytes"] -= 1


def another_tensor_digest(manifest: dict[str, Any]) -> None:
    manifest["parts"][MODEL]["tensors"]["parameters.layer.weight"]["sha256"] = "0" * 64


def another_header(scene: Scene) -> None:
    """Two vectors of equal length swap places in the header, with every hash updated."""
    data = (scene.newest / MODEL).read_bytes()
    specs = [place.spec for part in scene.image(30).parts if part.name == MODEL for place in part.tensors]
    swapped = {"parameters.layer.bias": "parameters.norm.weight", "parameters.norm.weight": "parameters.layer.bias"}
    header = header_of([replace(spec, name=swapped.get(spec.name, spec.name)) for spec in specs])
    shorter = header.replace(b'"shape":[64]', b'"shape":[63]', 1)
    forge(scene.newest, lambda manifest: None, {MODEL: put(data, 0, shorter)})


def value_changed(part: str, tensor: str, piece: bytes) -> Tamper:
    """The first element of `tensor` becomes `piece`, with all records updated."""

    def do(scene: Scene) -> None:
        place = next(p for each in scene.image(30).parts for p in each.tensors if p.spec.name == tensor)
        start = place.offset - next(each.offset for each in scene.image(30).parts if each.name == part)
        data = put((scene.newest / part).read_bytes(), start, piece)
        sha = tensor_sha256(place.spec.dtype, place.spec.shape, data[start : start + place.spec.nbytes])
        forge(scene.newest, lambda manifest: manifest["parts"][part]["tensors"][tensor].update(sha256=sha), {part: data})

    return do


def train_no_json(scene: Scene) -> None:
    forge(scene.newest, lambda manifest: None, {TRAIN: b"{"})


def edited(name: str, **changes: object) -> Tamper:
    """A record is edited without updating its own hash."""

    def do(scene: Scene) -> None:
        path = scene.newest / name
        path.write_text(json.dumps(json.loads(path.read_bytes()) | changes, sort_keys=True, separators=(",", ":")), encoding="utf-8")

    return do


def not_canonical(name: str) -> Tamper:
    def do(scene: Scene) -> None:
        path = scene.newest.with_suffix(".json") if scene.single else scene.newest / name
        path.write_bytes(path.read_bytes() + b"\n")

    return do


GROUP = (
    *ANY_LAYOUT,
    *rolled_back("file"),
    Row("parts swapped, sizes equal", structural_cases.parts_swapped, "hash"),
    Row("manifest of an older step", structural_cases.stale_manifest, "manifest"),
    Row("manifest and commit of an older step", structural_cases.stale_records, "hash"),
    Row("older folder under a newer number", structural_cases.older_under_newer_number, "commit", 30, (20,)),
    Row("an extra file", structural_cases.extra("extra.safetensors"), "parts"),
    Row("an extra folder", structural_cases.extra_folder, "parts"),
    Row("a part's name in capitals beside it", structural_cases.extra("MODEL.safetensors"), "parts"),
    Row("a part's name in wide letters beside it", structural_cases.extra("\uff4dodel.safetensors"), "parts"),
    Row("folder a symbolic link", structural_cases.linked_step, "file"),
    Row("COMMIT missing", structural_cases.missing(COMMIT), "commit"),
    Row("MANIFEST missing", structural_cases.missing(MANIFEST), "manifest"),
    Row("COMMIT edited", edited(COMMIT, attempt=7), "commit"),
    Row("COMMIT's predecessor edited", edited(COMMIT, prev_commit_sha256="0" * 64), "commit"),
    Row("COMMIT not canonical", not_canonical(COMMIT), "commit"),
    Row("MANIFEST edited", edited(MANIFEST, epoch=1), "manifest"),
    Row("COMMIT of another run, made to agree", lambda scene: recommit(scene.newest, {"run_id": _NOBODY}), "commit"),
    Row("MANIFEST of another run, made to agree", forged(lambda manifest: manifest.update(run_id=_NOBODY)), "manifest"),
    Row("no parts, made to agree", forged(lambda manifest: manifest.update(parts={})), "manifest"),
    Row("manifest lacks a part, made to agree", forged(without(OPTIMIZER)), "parts"),
    Row("a part named twice, made to agree", forged(renamed(MODEL, "model2.safetensors")), "parts"),
    Row("a part named in capitals, made to agree", forged(renamed(MODEL, "MODEL.safetensors")), "manifest"),
    Row("a part's name leads out, made to agree", forged(renamed(MODEL, "../model.safetensors")), "manifest"),
    Row("manifest with another size, made to agree", forged(another_size), "parts"),
    Row("header of another shape, made to agree", another_header, "schema"),
    Row("train.json no JSON, made to agree", train_no_json, "schema"),
    Row("tensor digest wrong, made to agree", forged(another_tensor_digest), "tensors"),
    Row("NaN in the model, made to agree", value_changed(MODEL, "parameters.layer.weight", _NAN), "finite"),
    Row("NaN in the optimizer, made to agree", value_changed(OPTIMIZER, "optimizer.layer.weight.momentum_buffer", _NAN), "finite"),
    Row("a weight changed, made to agree", value_changed(MODEL, "parameters.layer.weight", b"\0\0\0\0"), "", 30, exact=False),
)


def sidecar_deleted(scene: Scene) -> None:
    scene.newest.with_suffix(".json").unlink()


def sidecar_of_another_step(scene: Scene) -> None:
    shutil.copy(scene.step(20).with_suffix(".json"), scene.newest.with_suffix(".json"))


def sidecar_linked(scene: Scene) -> None:
    path, outside = scene.newest.with_suffix(".json"), scene.layout.root / "outside"
    path.rename(outside)
    path.symlink_to(outside)


def older_with_its_sidecar(scene: Scene) -> Path:
    for path in scene.files(20):
        shutil.copy(path, scene.step(40).with_suffix(path.suffix))
    return scene.step(40)


SINGLE = (
    *ANY_LAYOUT,
    *rolled_back("commit"),
    Row("sidecar missing", sidecar_deleted, "commit"),
    Row("sidecar of another step", sidecar_of_another_step, "parts"),
    Row("sidecar a symbolic link", sidecar_linked, "commit"),
    Row("sidecar not canonical", not_canonical(""), "commit"),
    Row("older files under a newer number", older_with_its_sidecar, "parts", 30, ()),
)
