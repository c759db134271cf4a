"""Files and folders moved, deleted, linked and forged in a run directory with three acknowledged
checkpoints, row by row of the table of cases.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ecrl_cli.checkpoint.format.hashing import tensor_digest
from ecrl_cli.checkpoint.format.image import header_of
from ecrl_cli.checkpoint.format.names import (
    COMMIT,
    LATEST,
    LATEST_OK,
    MANIFEST,
    MODEL,
    OPTIMIZER,
    RNG,
    STAGE_PREFIX,
    TRAIN,
    step_name,
)
from ecrl_cli.studies.corruption.byte_faults import bitflip, put
from ecrl_cli.studies.corruption.content import STEPS, StoreFixture, store_in
from ecrl_cli.studies.frame.store_fixture import forge, put_commit, put_socket, put_zero_device

PARTS = (MODEL, OPTIMIZER, RNG, TRAIN)
Tamper = Callable[[StoreFixture], Path | None]


@dataclass(frozen=True)
class Row:
    """`do` tampers and returns the checkpoint to verify (None: the newest). `layer` must reject it
    (empty: it must pass); recovery must find step `recovers` (None: nothing), exactly as saved
    unless `exact` is False. `missed`: steps acknowledged by the records outside the folder but not
    there intact under their commit. `needs`: what the machine must permit.
    """

    name: str
    do: Tamper
    layer: str
    recovers: int | None = 20
    missed: tuple[int, ...] = STEPS[-1:]
    exact: bool = True
    needs: str = ""


def some_part(fixture: StoreFixture) -> Path:
    return fixture.newest if fixture.single else fixture.newest / fixture.rng.choice(PARTS)


def part_deleted(fixture: StoreFixture) -> None:
    some_part(fixture).unlink()


def part_of_another_step(fixture: StoreFixture) -> None:
    path = some_part(fixture)
    shutil.copy(fixture.step(20) if fixture.single else fixture.step(20) / path.name, path)


def parts_swapped(fixture: StoreFixture) -> None:
    model, optimizer = fixture.newest / MODEL, fixture.newest / OPTIMIZER
    first, second = model.read_bytes(), optimizer.read_bytes()
    assert len(first) == len(second) and first != second
    model.write_bytes(second)
    optimizer.write_bytes(first)


def stale_manifest(fixture: StoreFixture) -> None:
    shutil.copy(fixture.step(20) / MANIFEST, fixture.newest / MANIFEST)


def stale_records(fixture: StoreFixture) -> None:
    stale_manifest(fixture)
    shutil.copy(fixture.step(20) / COMMIT, fixture.newest / COMMIT)


def older_under_newer_number(fixture: StoreFixture) -> Path:
    for path in fixture.files(20):
        path.rename(path.with_name(path.name.replace(step_name(20), step_name(40))))
    return fixture.step(40)


def of_another_run(fixture: StoreFixture) -> Path:
    with store_in(fixture.layout.root / "other") as other:
        other.save(fixture.image(40, run_id="6" * 64), 0)
    for path in fixture.files(40):
        (other.root / path.name).rename(path)
    return fixture.step(40)


def second_attempt_beside(fixture: StoreFixture) -> Path:
    target = fixture.newest.with_name(f"{fixture.newest.name}.1")
    (shutil.copy if fixture.single else shutil.copytree)(fixture.newest, target)
    return target


def second_attempt_in_a_stage(fixture: StoreFixture) -> None:
    target = fixture.newest.with_name(f"{STAGE_PREFIX}{step_name(30)[5:]}.1.00000000")
    (shutil.copy if fixture.single else shutil.copytree)(fixture.newest, target)


def part_of_another_attempt(fixture: StoreFixture) -> None:
    with store_in(fixture.layout.root / "other") as other:
        other.save(fixture.image(30, seed=fixture.seed + 1), 0)
    name = (
        fixture.newest.name
        if fixture.single
        else f"{fixture.newest.name}/{fixture.rng.choice((MODEL, OPTIMIZER, RNG))}"
    )
    shutil.copy(other.root / name, fixture.checkpoints / name)


def extra(name: str) -> Tamper:
    def do(fixture: StoreFixture) -> None:
        (fixture.newest / name).write_bytes((fixture.newest / MODEL).read_bytes())

    return do


def extra_folder(fixture: StoreFixture) -> None:
    (fixture.newest / "extra").mkdir()


def hard_link(fixture: StoreFixture) -> None:
    outside, path = fixture.layout.root / "outside", some_part(fixture)
    outside.write_bytes(path.read_bytes())
    path.unlink()
    os.link(outside, path)


def linked_part(fixture: StoreFixture) -> None:
    outside, path = fixture.layout.root / "outside", some_part(fixture)
    path.rename(outside)
    path.symlink_to(outside)


def linked_step(fixture: StoreFixture) -> None:
    outside = fixture.layout.root / "outside"
    fixture.newest.rename(outside)
    fixture.newest.symlink_to(outside)


def fifo(fixture: StoreFixture) -> None:
    path = some_part(fixture)
    path.unlink()
    os.mkfifo(path)


def device(fixture: StoreFixture) -> None:
    path = some_part(fixture)
    path.unlink()
    put_zero_device(path)


def sockets(fixture: StoreFixture) -> None:
    path = some_part(fixture)
    path.unlink()
    put_socket(path)


def missing(name: str) -> Tamper:
    return lambda fixture: (fixture.newest / name).unlink()


def sparse(fixture: StoreFixture) -> None:
    path = (
        fixture.newest
        if fixture.single
        else fixture.newest / fixture.rng.choice((MODEL, OPTIMIZER, RNG))
    )
    size = path.stat().st_size
    path.write_bytes(b"")
    os.truncate(path, size)


def pointer(text: str) -> Tamper:
    """Write `text` in place of a checkpoint's name in latest.json and latest_ok."""

    def do(fixture: StoreFixture) -> None:
        fixture.store.point(fixture.newest, {})
        path = fixture.checkpoints / LATEST
        path.write_text(
            path.read_text(encoding="utf-8").replace(fixture.newest.name, text), encoding="utf-8"
        )
        (fixture.checkpoints / LATEST_OK).unlink()
        (fixture.checkpoints / LATEST_OK).symlink_to(text)

    return do


def pointer_to_partial(fixture: StoreFixture) -> None:
    pointer(step_name(20))(fixture)
    fixture.files(20)[0].unlink() if fixture.single else (fixture.step(20) / COMMIT).unlink()


def pointer_flipped(fixture: StoreFixture) -> None:
    fixture.store.point(fixture.newest, {})
    path = fixture.checkpoints / LATEST
    path.write_bytes(bitflip(path.read_bytes(), fixture.rng))


def deleted(*steps: int, forgotten: bool = False) -> Tamper:
    """Delete the checkpoints of `steps`; `forgotten`: also every record of them."""

    def do(fixture: StoreFixture) -> None:
        for step in steps:
            for path in fixture.files(step):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        if forgotten:
            journal = fixture.layout.attempt(0).checkpoints
            kept = [
                line
                for line in journal.read_text(encoding="utf-8").splitlines(True)
                if not any(step_name(step) in line for step in steps)
            ]
            journal.write_text("".join(kept), encoding="utf-8")

    return do


ANY_LAYOUT = (
    Row("part deleted", part_deleted, "parts"),
    Row("part of another step", part_of_another_step, "hash"),
    Row("part of another attempt", part_of_another_attempt, "hash"),
    Row("checkpoint of another run", of_another_run, "commit", 30, ()),
    Row("second attempt under a name of its own", second_attempt_beside, "file", 30, ()),
    Row("second attempt left in a stage", second_attempt_in_a_stage, "", 30, ()),
    Row("hard link to an outside file", hard_link, "parts"),
    Row("part a symbolic link", linked_part, "parts"),
    Row("part a FIFO", fifo, "parts"),
    Row("part a socket", sockets, "parts"),
    Row("part a device", device, "parts", needs="mknod"),
    Row("sparse file of the right size", sparse, "hash"),
    Row("pointers to nothing", pointer("step_00000099"), "", 30, ()),
    Row("pointers out of the folder", pointer("../../outside"), "", 30, ()),
    Row("pointers to themselves", pointer(LATEST_OK), "", 30, ()),
    Row("pointers to a partial checkpoint", pointer_to_partial, "", 30, (20,)),
    Row("latest.json with a flipped bit", pointer_flipped, "", 30, ()),
)


def rolled_back(layer: str) -> tuple[Row, ...]:
    """Whole checkpoints deleted. The store cannot detect it; the records can, while they exist.
    `layer` reports a missing checkpoint.
    """
    return (
        Row("rollback: newest deleted", deleted(30), layer, 20, (30,)),
        Row("rollback: newest two deleted", deleted(20, 30), layer, 10, (20, 30)),
        Row("all deleted", deleted(*STEPS), layer, None, STEPS),
        Row("rollback, records of it deleted too", deleted(30, forgotten=True), layer, 20, ()),
    )


_NAN = b"\x00\x00\xc0\x7f"
_OTHER_RUN = "6" * 64

Edit = Callable[[dict[str, Any]], object]


def forged(edit: Edit) -> Tamper:
    return lambda fixture: forge(fixture.newest, edit)


def without(part: str) -> Edit:
    return lambda manifest: manifest["parts"].pop(part)


def renamed(part: str, name: str) -> Edit:
    """The manifest lists a part twice: under its own name, and as `name`, without its tensors."""
    return lambda manifest: manifest["parts"].update(
        {name: manifest["parts"][part] | {"tensors": {}}}
    )


def another_size(manifest: dict[str, Any]) -> None:
    manifest["parts"][MODEL]["bytes"] -= 1


def another_tensor_digest(manifest: dict[str, Any]) -> None:
    manifest["parts"][MODEL]["tensors"]["parameters.layer.weight"]["digest"] = "0" * 64


def another_header(fixture: StoreFixture) -> None:
    """Two vectors of equal length swap places in the header, with every hash updated."""
    data = (fixture.newest / MODEL).read_bytes()
    specs = [
        place.spec
        for part in fixture.image(30).parts
        if part.name == MODEL
        for place in part.tensors
    ]
    swapped = {
        "parameters.layer.bias": "parameters.norm.weight",
        "parameters.norm.weight": "parameters.layer.bias",
    }
    header = header_of([replace(spec, name=swapped.get(spec.name, spec.name)) for spec in specs])
    shorter = header.replace(b'"shape":[64]', b'"shape":[63]', 1)
    forge(fixture.newest, lambda manifest: None, {MODEL: put(data, 0, shorter)})


def value_changed(part: str, tensor: str, piece: bytes) -> Tamper:
    """The first element of `tensor` becomes `piece`, with all records updated."""

    def do(fixture: StoreFixture) -> None:
        place = next(
            p for each in fixture.image(30).parts for p in each.tensors if p.spec.name == tensor
        )
        start = place.offset - next(
            each.offset for each in fixture.image(30).parts if each.name == part
        )
        data = put((fixture.newest / part).read_bytes(), start, piece)
        found = tensor_digest(
            place.spec.dtype, place.spec.shape, data[start : start + place.spec.nbytes]
        )
        forge(
            fixture.newest,
            lambda manifest: manifest["parts"][part]["tensors"][tensor].update(digest=found),
            {part: data},
        )

    return do


def train_no_json(fixture: StoreFixture) -> None:
    forge(fixture.newest, lambda manifest: None, {TRAIN: b"{"})


def edited(name: str, **changes: object) -> Tamper:
    """A record is edited without updating its own hash."""

    def do(fixture: StoreFixture) -> None:
        path = fixture.newest / name
        path.write_text(
            json.dumps(
                json.loads(path.read_bytes()) | changes, sort_keys=True, separators=(",", ":")
            ),
            encoding="utf-8",
        )

    return do


def not_canonical(name: str) -> Tamper:
    def do(fixture: StoreFixture) -> None:
        path = fixture.newest.with_suffix(".json") if fixture.single else fixture.newest / name
        path.write_bytes(path.read_bytes() + b"\n")

    return do


GROUP = (
    *ANY_LAYOUT,
    *rolled_back("file"),
    Row("parts swapped, sizes equal", parts_swapped, "hash"),
    Row("manifest of an older step", stale_manifest, "manifest"),
    Row("manifest and commit of an older step", stale_records, "hash"),
    Row("older folder under a newer number", older_under_newer_number, "commit", 30, (20,)),
    Row("an extra file", extra("extra.safetensors"), "parts"),
    Row("an extra folder", extra_folder, "parts"),
    Row("a part's name in capitals beside it", extra("MODEL.safetensors"), "parts"),
    Row("a part's name in wide letters beside it", extra("\uff4dodel.safetensors"), "parts"),
    Row("folder a symbolic link", linked_step, "file"),
    Row("COMMIT missing", missing(COMMIT), "commit"),
    Row("MANIFEST missing", missing(MANIFEST), "manifest"),
    Row("COMMIT edited", edited(COMMIT, attempt=7), "commit"),
    Row("COMMIT's predecessor edited", edited(COMMIT, prev_commit_sha256="0" * 64), "commit"),
    Row("COMMIT not canonical", not_canonical(COMMIT), "commit"),
    Row("MANIFEST edited", edited(MANIFEST, epoch=1), "manifest"),
    Row(
        "COMMIT of another run, made to agree",
        lambda fixture: put_commit(fixture.newest, run_id=_OTHER_RUN),
        "commit",
    ),
    Row(
        "MANIFEST of another run, made to agree",
        forged(lambda manifest: manifest.update(run_id=_OTHER_RUN)),
        "manifest",
    ),
    Row("no parts, made to agree", forged(lambda manifest: manifest.update(parts={})), "manifest"),
    Row("manifest lacks a part, made to agree", forged(without(OPTIMIZER)), "parts"),
    Row("a part named twice, made to agree", forged(renamed(MODEL, "model2.safetensors")), "parts"),
    Row(
        "a part named in capitals, made to agree",
        forged(renamed(MODEL, "MODEL.safetensors")),
        "manifest",
    ),
    Row(
        "a part's name leads out, made to agree",
        forged(renamed(MODEL, "../model.safetensors")),
        "manifest",
    ),
    Row("manifest with another size, made to agree", forged(another_size), "parts"),
    Row("header of another shape, made to agree", another_header, "schema"),
    Row("train.json no JSON, made to agree", train_no_json, "schema"),
    Row("tensor digest wrong, made to agree", forged(another_tensor_digest), "tensors"),
    Row(
        "NaN in the model, made to agree",
        value_changed(MODEL, "parameters.layer.weight", _NAN),
        "finite",
    ),
    Row(
        "NaN in the optimizer, made to agree",
        value_changed(OPTIMIZER, "optimizer.layer.weight.momentum_buffer", _NAN),
        "finite",
    ),
    Row(
        "a weight changed, made to agree",
        value_changed(MODEL, "parameters.layer.weight", b"\0\0\0\0"),
        "",
        30,
        exact=False,
    ),
)


def sidecar_deleted(fixture: StoreFixture) -> None:
    fixture.newest.with_suffix(".json").unlink()


def sidecar_of_another_step(fixture: StoreFixture) -> None:
    shutil.copy(fixture.step(20).with_suffix(".json"), fixture.newest.with_suffix(".json"))


def sidecar_linked(fixture: StoreFixture) -> None:
    path, outside = fixture.newest.with_suffix(".json"), fixture.layout.root / "outside"
    path.rename(outside)
    path.symlink_to(outside)


def older_with_its_sidecar(fixture: StoreFixture) -> Path:
    for path in fixture.files(20):
        shutil.copy(path, fixture.step(40).with_suffix(path.suffix))
    return fixture.step(40)


SINGLE = (
    *ANY_LAYOUT,
    *rolled_back("commit"),
    Row("sidecar missing", sidecar_deleted, "commit"),
    Row("sidecar of another step", sidecar_of_another_step, "parts"),
    Row("sidecar a symbolic link", sidecar_linked, "commit"),
    Row("sidecar not canonical", not_canonical(""), "commit"),
    Row("older files under a newer number", older_with_its_sidecar, "parts", 30, ()),
)
