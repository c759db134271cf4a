"""Synthetic checkpoints: their content is a function of (seed, step), so that a checker needs no
reference file. Torch-free.
"""

from __future__ import annotations

import mmap
import random
from concurrent.futures import ThreadPoolExecutor

from ecrl_cli.checkpoint.format.canonical_json import canonical_json
from ecrl_cli.checkpoint.format.hashing import ImageHasher
from ecrl_cli.checkpoint.format.image import (
    CheckpointImage,
    CheckpointMeta,
    ImagePlan,
    PartPlace,
    TensorSpec,
    plan_image,
)
from ecrl_cli.checkpoint.format.manifest import Components, components_of
from ecrl_cli.checkpoint.format.names import MODEL, OPTIMIZER, RNG, TRAIN, step_name

RUN_ID = "5" * 64
_PIECE = 64 * 2**20
_RNG_BYTES = 5056  # size of torch's CPU generator state


def synthetic_plan(model_bytes: int, optimizer_bytes: int, *, single: bool = False) -> ImagePlan:
    """The layout: a float32 vector and a counter in the model, one vector in the optimizer, one
    rank's RNG state.
    """
    model = [
        TensorSpec("parameters.weight", "torch.float32", (model_bytes // 4,)),
        TensorSpec("buffers.steps", "torch.int64", ()),
    ]
    optimizer = [
        TensorSpec("optimizer.weight.momentum_buffer", "torch.float32", (optimizer_bytes // 4,))
    ]
    rng = [TensorSpec("rng.rank0.torch", "torch.uint8", (_RNG_BYTES,))]
    return plan_image(
        {"all": model + optimizer + rng}
        if single
        else {MODEL: model, OPTIMIZER: optimizer, RNG: rng}
    )


def synthetic_image(
    seed: int, step: int, plan: ImagePlan, run_id: str = RUN_ID, *, restorable: bool = False
) -> CheckpointImage:
    """The image of `step`. `restorable`: its train.json has all fields that a rank restores from,
    as a run's store requires.
    """
    memory = memoryview(mmap.mmap(-1, plan.nbytes))
    for offset, header in plan.headers:
        memory[offset : offset + len(header)] = header
    generator = random.Random(f"{seed}/{step}")
    for place in plan.tensors:
        data = _drawn(generator, place.spec.nbytes)
        if place.spec.dtype == "torch.float32":
            # exponents of numbers between 0.5 and 2: all finite
            data[3::4] = b"\x3f" * (len(data) // 4)
        memory[place.offset : place.offset + len(data)] = data
    parts = plan.parts
    if len(parts) == 1:
        parts = (
            PartPlace(
                step_name(step) + ".safetensors", parts[0].offset, parts[0].nbytes, parts[0].tensors
            ),
        )
    train: dict[str, object] = {"global_step": step, "line_chain": [""]}
    if restorable:
        optimizer: dict[str, object] = {"param_groups": [], "scalars": {}, "host_keys": []}
        train |= {
            "sampler": {"epoch": 0, "cursor_step": step, "seed": seed},
            "scheduler": {},
            "scaler": None,
            "optimizer": optimizer,
        }
    return CheckpointImage(
        CheckpointMeta(run_id, step, 0, step, seed, 1),
        memory,
        parts,
        {TRAIN: canonical_json(train)},
    )


def _drawn(generator: random.Random, nbytes: int) -> bytearray:
    """Random bytes, drawn in pieces: one call can draw at most 256 MiB."""
    data = bytearray(generator.randbytes(min(nbytes, _PIECE)))
    while len(data) < nbytes:
        data += generator.randbytes(min(nbytes - len(data), _PIECE))
    return data


def image_components(image: CheckpointImage) -> Components:
    """The component digests that the manifest of this image must have."""
    with ThreadPoolExecutor(1) as pool:
        entries = ImageHasher(image, pool).entries()
    return components_of(
        {name: entry.digest for part in entries.values() for name, entry in part.tensors.items()}
    )
