"""The content of the random program's checkpoints, a function of (step, ranks), and the inspection
of the disk by it after every operation.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from ecrl_cli.checkpoint.format.image import (
    CheckpointImage,
    CheckpointMeta,
    TensorPlace,
    TensorSpec,
)
from ecrl_cli.checkpoint.format.manifest import Components, components
from ecrl_cli.checkpoint.format.names import MODEL, OPTIMIZER, RNG
from ecrl_cli.checkpoint.store.catalog import CheckpointEntry
from ecrl_cli.checkpoint.store.integrity import IntegrityReport, verify_checkpoint
from ecrl_cli.checkpoint.store.synthetic import RUN_ID, image_components
from ecrl_cli.errors import StorageError
from ecrl_cli.storage.fs import READ, Fs
from ecrl_cli.storage.memory_fs import ModelFs, Tree
from ecrl_cli.studies.frame.store_fixture import GUARD, files_of, image_from, in_one_part
from ecrl_cli.studies.store_soak.model import Content


@cache
def image_of(content: Content, layout: str) -> CheckpointImage:
    """The snapshot of `content`; each rank has its own generator, so another number of ranks gives
    another image.
    """
    step, ranks = content
    drawn = random.Random(f"{step}/{ranks}")

    def fill(place: TensorPlace) -> bytes:
        data = bytearray(drawn.randbytes(place.spec.nbytes))
        if place.spec.dtype == "torch.float32":
            # exponents of numbers between 0.5 and 2: all finite
            data[3::4] = b"\x3f" * (len(data) // 4)
        return bytes(data)

    parts = {
        MODEL: [
            TensorSpec("parameters.weight", "torch.float32", (24,)),
            TensorSpec("buffers.steps", "torch.int64", ()),
        ],
        OPTIMIZER: [TensorSpec("optimizer.weight.momentum_buffer", "torch.float32", (12,))],
        RNG: [TensorSpec(f"rng.rank{rank}.torch", "torch.uint8", (16,)) for rank in range(ranks)],
    }
    stamp = CheckpointMeta(RUN_ID, step, 0, step, 1, ranks)
    return image_from(
        in_one_part(parts, single=layout == "single"),
        fill,
        stamp,
        {"global_step": step, "line_chain": [""] * ranks},
    )


@cache
def _files(content: Content, layout: str) -> dict[str, bytes]:
    return files_of(image_of(content, layout))


@cache
def _components(content: Content, layout: str) -> Components:
    return image_components(image_of(content, layout))


def content_of(report: IntegrityReport, fs: Fs, layout: str) -> Content | None:
    """The content of a checkpoint that passed an integrity check, by its bytes and the digests in
    its manifest; None if it was never made here.
    """
    manifest, path = report.manifest, report.path
    if manifest is None or report.global_step is None or manifest.world_size not in (1, 2, 4):
        return None
    content = report.global_step, manifest.world_size
    there = all(
        _read(fs, path if layout == "single" else path / name) == data
        for name, data in _files(content, layout).items()
    )
    return content if there and components(manifest) == _components(content, layout) else None


def _read(fs: Fs, path: Path) -> bytes | None:
    try:
        fd = fs.open(path, READ)
    except StorageError:
        return None
    buffer = memoryview(bytearray(fs.fstat(fd).st_size))
    fs.read_at(fd, buffer, 0)
    fs.close(fd)
    return bytes(buffer)


Bytes = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class Seen:
    """A name that counts: its content, or why it is `refused`. `committed`: its commit record is
    whole. `wrong`: it passes and should not.
    """

    content: Content | None
    committed: bool
    refused: str
    wrong: str = ""


class Observer:
    def __init__(self, layout: str) -> None:
        self._layout = layout

    def inspect(self, disk: ModelFs, entry: CheckpointEntry) -> Seen:
        files = (
            entry.files
            if entry.single
            else tuple(entry.path / name for name in disk.listdir(entry.path))
        )
        return _examined(
            entry, self._layout, tuple((path.name, _read(disk, path)) for path in files)
        )


@lru_cache(4096)
def _examined(entry: CheckpointEntry, layout: str, files: Bytes) -> Seen:
    held: dict[str, Tree] = {name: data for name, data in files if data is not None}
    root = entry.path.parent
    disk = ModelFs(root.parent, {root.name: held if entry.single else {entry.path.name: held}})
    report = verify_checkpoint(entry.path, GUARD, disk)
    if not report.ok:
        return Seen(None, report.commit_sha256 is not None, f"{report.layer}: {report.reason}")
    content = content_of(report, disk, layout)
    return Seen(
        content,
        True,
        "",
        (
            ""
            if content
            else (
                f"silent_wrong: {entry.path.name} passes the integrity check and does not hold what"
                " was saved"
            )
        ),
    )
