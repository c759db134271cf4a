"""Torch-free checkpoints with realistic content: zero, small and random values as in real training."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

from ecrl_cli.checkpoint.format.canonical_json import canonical_json
from ecrl_cli.checkpoint.format.image import CheckpointImage, CheckpointMeta, PartPlace, TensorSpec, plan_image
from ecrl_cli.checkpoint.format.names import MODEL, OPTIMIZER, RNG, TRAIN, step_name
from ecrl_cli.checkpoint.store.integrity import IntegrityConfig
from ecrl_cli.checkpoint.store.store import CheckpointStore, StoreConfig
from ecrl_cli.checkpoint.store.synthetic import RUN_ID
from ecrl_cli.storage.writing import WriteMode

GUARD = IntegrityConfig(run_id=RUN_ID)
UNSAFE = WriteMode(sync_files=False, atomic=False, sync_directories=False)  # for content read back at once
GENERATOR = 5056  # size of torch's CPU generator state in bytes
PUBLISHED = (128 * 1024, 64 * 1024)  # model, optimizer

Parts = dict[str, list[TensorSpec]]


def training_specs(model_bytes: int, optimizer_bytes: int, world_size: int, generator: int = GENERATOR) -> Parts:
    """A layer with bias and batch norm, momentum, a step counter, and every rank's generator."""
    side = 64
    model = [
        TensorSpec("parameters.layer.weight", "torch.float32", (model_bytes // 4 - 4 * side,)),
        *(TensorSpec(name, "torch.float32", (side,)) for name in ("parameters.layer.bias", "parameters.norm.weight")),
        *(TensorSpec(f"buffers.norm.{name}", "torch.float32", (side,)) for name in ("running_mean", "running_var")),
        TensorSpec("buffers.norm.num_batches_tracked", "torch.int64", ()),
    ]
    optimizer = [
        TensorSpec("optimizer.layer.weight.momentum_buffer", "torch.float32", (optimizer_bytes // 4 - side,)),
        TensorSpec("optimizer.layer.bias.momentum_buffer", "torch.float32", (side,)),
        TensorSpec("optimizer.layer.weight.step", "torch.float32", ()),
    ]
    generators = [TensorSpec(f"rng.rank{rank}.torch", "torch.uint8", (generator,)) for rank in range(world_size)]
    return {MODEL: model, OPTIMIZER: optimizer, RNG: generators}


def image_of(parts: Parts, seed: int, step: int, *, single: bool = False, run_id: str = RUN_ID) -> CheckpointImage:
    """The snapshot of `step`; its bytes are a function of (seed, step)."""
    plan = plan_image({"all": [spec for specs in parts.values() for spec in specs]} if single else parts)
    memory = memoryview(mmap.mmap(-1, plan.nbytes))
    for offset, header in plan.headers:
        memory[offset : offset + len(header)] = header
    rng = np.random.default_rng((seed, step))
    for place in plan.tensors:
        memory[place.offset : place.offset + place.spec.nbytes] = tensor_bytes(place.spec, step, rng)
    places = plan.parts
    if single:
        places = (PartPlace(step_name(step) + ".safetensors", places[0].offset, places[0].nbytes, places[0].tensors),)
    ranks = len(parts[RNG])
    train = canonical_json({"global_step": step, "line_chain": [""] * ranks, "schema_version": 1, "sampler": {"epoch": 0, "seed": seed}})
    return CheckpointImage(CheckpointMeta(run_id, step, 0, step, seed, ranks), memory, places, {TRAIN: train})


def tensor_bytes(spec: TensorSpec, step: int, rng: np.random.Generator) -> bytes:
    """The bytes of a tensor of this name and type after `step` steps; zero where training leaves zeros."""
    count, kind = int(np.prod(spec.shape, dtype=np.int64)), spec.dtype.removeprefix("torch.")
    if spec.name.startswith("rng."):  # 32-bit words in 64-bit slots
        return rng.integers(0, 2**32, -(-count // 8), dtype=np.uint64).tobytes()[:count]
    if spec.name.endswith(("bias", "running_mean", "bias.momentum_buffer")):
        return bytes(spec.nbytes)
    if not count or kind == "bool":
        return rng.integers(0, 2, count, dtype=np.uint8).tobytes()
    if kind == "bfloat16":  # the upper half of a float32
        return (rng.standard_normal(count, dtype=np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
    if kind == "complex64":
        return rng.standard_normal(2 * count, dtype=np.float32).tobytes()
    if kind.startswith("float"):
        return rng.standard_normal(count).astype(kind).tobytes()
    return np.full(count, step % 100, dtype=kind).tobytes()


def store_in(root: Path, mode: WriteMode = UNSAFE) -> CheckpointStore:
    """A store in `root`/checkpoints that retires nothing."""
    root.mkdir(parents=True, exist_ok=True)
    store = CheckpointStore(root / "checkpoints", StoreConfig(mode, 1000, GUARD))
    store.claim(0)
    return store
