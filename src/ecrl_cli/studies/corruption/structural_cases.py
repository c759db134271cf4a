"""Tampering with a group checkpoint, row by row, each with its expected outcome fixed in advance."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ecrl_cli.checkpoint.format.names import COMMIT, LATEST, LATEST_OK, MANIFEST, MODEL, OPTIMIZER, RNG, STAGE_PREFIX, TRAIN, step_name
from ecrl_cli.studies.corruption.content import store_in
from ecrl_cli.studies.corruption.faults import bitflip
from ecrl_cli.studies.corruption.store_fixture import STEPS, Scene

PARTS = (MODEL, OPTIMIZER, RNG, TRAIN)
Tamper = Callable[[Scene], Path | None]


@dataclass(frozen=True)
class Row:
    """`do` tampers and returns the checkpoint to verify (None: the newest). `layer` must reject it (empty: it must pass); recovery must find step
    `recovers` (None: nothing), exactly as saved unless `exact` is False. `missed`: steps acknowledged by the records outside the folder but not
    there intact under their commit. `needs`: what the machine must permit."""

    name: str
    do: Tamper
    layer: str
    recovers: int | None = 20
    missed: tuple[int, ...] = STEPS[-1:]
    exact: bool = True
    needs: str = ""


def some_part(scene: Scene) -> Path:
    return scene.newest if scene.single else scene.newest / scene.rng.choice(PARTS)


def part_deleted(scene: Scene) -> None:
    some_part(scene).unlink()


def part_of_another_step(scene: Scene) -> None:
    path = some_part(scene)
    shutil.copy(scene.step(20) if scene.single else scene.step(20) / path.name, path)


def parts_swapped(scene: Scene) -> None:
    model, optimizer = scene.newest / MODEL, scene.newest / OPTIMIZER
    first, second = model.read_bytes(), optimizer.read_bytes()
    assert len(first) == len(second) and first != second
    model.write_bytes(second)
    optimizer.write_bytes(first)


def stale_manifest(scene: Scene) -> None:
    shutil.copy(scene.step(20) / MANIFEST, scene.newest / MANIFEST)


def stale_records(scene: Scene) -> None:
    stale_manifest(scene)
    shutil.copy(scene.step(20) / COMMIT, scene.newest / COMMIT)


def older_under_newer_number(scene: Scene) -> Path:
    for path in scene.files(20):
        path.rename(path.with_name(path.name.replace(step_name(20), step_name(40))))
    return scene.step(40)


def of_another_run(scene: Scene) -> Path:
    other = store_in(scene.layout.root / "other")
    try:
        other.save(scene.image(40, run_id="6" * 64), 0)
    finally:
        other.close()
    for path in scene.files(40):
        (other.root / path.name).rename(path)
    return scene.step(40)


def second_attempt_beside(scene: Scene) -> Path:
    target = scene.newest.with_name(f"{scene.newest.name}.1")
    (shutil.copy if scene.single else shutil.copytree)(scene.newest, target)
    return target


def second_attempt_in_a_stage(scene: Scene) -> None:
    target = scene.newest.with_name(f"{STAGE_PREFIX}{step_name(30)[5:]}.1.00000000")
    (shutil.copy if scene.single else shutil.copytree)(scene.newest, target)


def part_of_another_attempt(scene: Scene) -> None:
    other = store_in(scene.layout.root / "other")
    try:
        other.save(scene.image(30, seed=scene.seed + 1), 0)
    finally:
        other.close()
    name = scene.newest.name if scene.single else f"{scene.newest.name}/{scene.rng.choice((MODEL, OPTIMIZER, RNG))}"
    shutil.copy(other.root / name, scene.checkpoints / name)


def extra(name: str) -> Tamper:
    def do(scene: Scene) -> None:
        (scene.newest / name).write_bytes((scene.newest / MODEL).read_bytes())

    return do


def extra_folder(scene: Scene) -> None:
    (scene.newest / "extra").mkdir()


def hard_link(scene: Scene) -> None:
    outside, path = scene.layout.root / "outside", some_part(scene)
    outside.write_bytes(path.read_bytes())
    path.unlink()
    os.link(outside, path)


def linked_part(scene: Scene) -> None:
    outside, path = scene.layout.root / "outside", some_part(scene)
    path.rename(outside)
    path.symlink_to(outside)


def linked_step(scene: Scene) -> None:
    outside = scene.layout.root / "outside"
    scene.newest.rename(outside)
    scene.newest.symlink_to(outside)


def fifo(scene: Scene) -> None:
    path = some_part(scene)
    path.unlink()
    os.mkfifo(path)


def device(scene: Scene) -> None:
    path = some_part(scene)
    path.unlink()
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero: reading it never ends


def sockets(scene: Scene) -> None:
    path = some_part(scene)
    path.unlink()
    here = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{here}/{path.name}")  # a socket path may have at most 107 bytes
    os.close(here)


def missing(name: str) -> Tamper:
    return lambda scene: (scene.newest / name).unlink()


def sparse(scene: Scene) -> None:
    path = scene.newest if scene.single else scene.newest / scene.rng.choice((MODEL, OPTIMIZER, RNG))
    size = path.stat().st_size
    path.write_bytes(b"")
    os.truncate(path, size)


def pointer(text: str) -> Tamper:
    """Write `text` in place of a checkpoint's name in latest.json and latest_ok."""

    def do(scene: Scene) -> None:
        scene.store.point(scene.newest, {})
        path = scene.checkpoints / LATEST
        path.write_text(path.read_text(encoding="utf-8").replace(scene.newest.name, text), encoding="utf-8")
        (scene.checkpoints / LATEST_OK).unlink()
        (scene.checkpoints / LATEST_OK).symlink_to(text)

    return do


def pointer_to_partial(scene: Scene) -> None:
    pointer(step_name(20))(scene)
    scene.files(20)[0].unlink() if scene.single else (scene.step(20) / COMMIT).unlink()


def pointer_flipped(scene: Scene) -> None:
    scene.store.point(scene.newest, {})
    path = scene.checkpoints / LATEST
    path.write_bytes(bitflip(path.read_bytes(), scene.rng))


def deleted(*steps: int, forgotten: bool = False) -> Tamper:
    """Delete the checkpoints of `steps`; `forgotten`: also every record of them."""

    def do(scene: Scene) -> None:
        for step in steps:
            for path in scene.files(step):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        if forgotten:
            journal = scene.layout.attempt(0).checkpoints
            kept = [line for line in journal.read_text(encoding="utf-8").splitlines(True) if not any(step_name(step) in line for step in steps)]
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
    """Whole checkpoints deleted. The store cannot detect it; the records can, while they exist. `layer` reports a missing checkpoint."""
    return (
        Row("rollback: newest deleted", deleted(30), layer, 20, (30,)),
        Row("rollback: newest two deleted", deleted(20, 30), layer, 10, (20, 30)),
        Row("all deleted", deleted(*STEPS), layer, None, STEPS),
        Row("rollback, records of it deleted too", deleted(30, forgotten=True), layer, 20, ()),
    )
