"""Checkpoint content for the random program: a function of (step, ranks), small enough for ten thousand operations in seconds. Torch-free."""

from __future__ import annotations

import mmap
import random
from functools import cache
from pathlib import Path

from ecrl_cli.checkpoint.format.canonical_json import canonical_json
from ecrl_cli.checkpoint.format.image import CheckpointImage, CheckpointMeta, ImagePlan, PartPlace, TensorSpec, plan_image
from ecrl_cli.checkpoint.format.manifest import Components, components
from ecrl_cli.checkpoint.format.names import MODEL, OPTIMIZER, RNG, TRAIN, step_name
from ecrl_cli.checkpoint.store.integrity import IntegrityReport
from ecrl_cli.checkpoint.store.synthetic import RUN_ID, image_components
from ecrl_cli.errors import StorageError
from ecrl_cli.storage.fs import READ, Fs
from ecrl_cli.studies.store_soak.model import Content


@cache
def image_of(content: Content, layout: str) -> CheckpointImage:
    """The snapshot of `content`; each rank has its own generator, so another number of ranks gives another image."""
    (step, ranks), single = content, layout == "single"
    plan = _plan(ranks, single)
    memory = memoryview(mmap.mmap(-1, plan.nbytes))
    for offset, header in plan.headers:
        memory[offset : offset + len(header)] = header
    drawn = random.Random(f"{step}/{ranks}")
    for place in plan.tensors:
        data = bytearray(drawn.randbytes(place.spec.nbytes))
        if place.spec.dtype == "torch.float32":
            data[3::4] = b"\x3f" * (len(data) // 4)  # exponents of numbers between 0.5 and 2: all finite
        memory[place.offset : place.offset + len(data)] = data
    parts = plan.parts
    if single:
        parts = (PartPlace(step_name(step) + ".safetensors", parts[0].offset, parts[0].nbytes, parts[0].tensors),)
    return CheckpointImage(
        CheckpointMeta(RUN_ID, step, 0, step, 1, ranks), memory, parts, {TRAIN: canonical_json({"global_step": step, "line_chain": [""] * ranks})}
    )


@cache
def _plan(ranks: int, single: bool) -> ImagePlan:
    model = [TensorSpec("parameters.weight", "torch.float32", (24,)), TensorSpec("buffers.steps", "torch.int64", ())]
    optimizer = [TensorSpec("optimizer.weight.momentum_buffer", "torch.float32", (12,))]
    rng = [TensorSpec(f"rng.rank{rank}.torch", "torch.uint8", (16,)) for rank in range(ranks)]
    return plan_image({"all": model + optimizer + rng} if single else {MODEL: model, OPTIMIZER: optimizer, RNG: rng})


@cache
def _files(content: Content, layout: str) -> dict[str, bytes]:
    image = image_of(content, layout)
    files = {part.name: bytes(image.memory[part.offset : part.offset + part.nbytes]) for part in image.parts}
    return files if layout == "single" else files | image.documents


@cache
def _components(content: Content, layout: str) -> Components:
    return image_components(image_of(content, layout))


def content_of(report: IntegrityReport, fs: Fs, layout: str) -> Content | None:
    """The content of a checkpoint that passed an integrity check, by its bytes and the digests in its manifest; None if it was never made here."""
    manifest, path = report.manifest, report.path
    if manifest is None or report.global_step is None or manifest.world_size not in (1, 2, 4):
        return None
    content = report.global_step, manifest.world_size
    there = all(_read(fs, path if layout == "single" else path / name) == data for name, data in _files(content, layout).items())
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
