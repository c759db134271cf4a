"""Makes the golden checkpoints of the current format: `python -m ecrl_cli.studies.golden.make
FOLDER`.

Released checkpoints are never regenerated: a new format version gets its own folder beside v1.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ecrl_cli.checkpoint.format.hashing import tensor_digest
from ecrl_cli.checkpoint.format.image import (
    DTYPES,
    CheckpointImage,
    CheckpointMeta,
    PartPlace,
    TensorSpec,
)
from ecrl_cli.checkpoint.format.names import MODEL, OPTIMIZER, RNG, TRAIN, TRAIN_VERSION, step_name
from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.studies.frame.store_fixture import image_from, in_one_part

LAYOUTS = ("group", "single", "torch")
EXPECTED = "expected.json"
STEP = 7
RUN_ID = "60" * 32


def specs() -> dict[str, list[TensorSpec]]:
    """Every type, a scalar and an empty tensor; generators of two ranks."""
    types = [
        TensorSpec(f"parameters.{dtype.removeprefix('torch.')}", dtype, (3, 2)) for dtype in DTYPES
    ]
    buffers = [
        TensorSpec("buffers.steps", "torch.int64", ()),
        TensorSpec("buffers.empty", "torch.float32", (0, 4)),
    ]
    optimizer = [TensorSpec("optimizer.float32.momentum_buffer", "torch.float32", (3, 2))]
    generators = [TensorSpec(f"rng.rank{rank}.torch", "torch.uint8", (16,)) for rank in range(2)]
    return {MODEL: types + buffers, OPTIMIZER: optimizer, RNG: generators}


def tensor_bytes(spec: TensorSpec, step: int) -> bytes:
    """A ramp that depends on the step and the length of the name."""
    ramp = np.arange(int(np.prod(spec.shape)), dtype="<f4") + step + len(spec.name)
    kind = spec.dtype.removeprefix("torch.")
    if kind == "bfloat16":
        return (ramp.view("<u4") >> 16).astype("<u2").tobytes()
    return (ramp % 2).astype(bool).tobytes() if kind == "bool" else ramp.astype(kind).tobytes()


def image(layout: str, step: int) -> CheckpointImage:
    train = {
        "schema_version": TRAIN_VERSION,
        "global_step": step,
        "line_chain": ["0" * 64, "1" * 64],
    }
    stamp = CheckpointMeta(RUN_ID, step, 1, 2, 3, 2)
    made = image_from(
        in_one_part(specs(), single=layout != "group"),
        lambda place: tensor_bytes(place.spec, step),
        stamp,
        train,
    )
    if layout != "torch":
        return made
    data, tensors = _torch_file(made), made.parts[0].tensors
    memory = bytearray(made.memory) + data
    return replace(
        made,
        memory=memoryview(memory),
        parts=(PartPlace(step_name(step) + ".pt", len(made.memory), len(data), tensors),),
    )


def _torch_file(image: CheckpointImage) -> bytes:
    """The bytes of a file with format=torch."""
    import torch

    from ecrl_cli.checkpoint.capture.loading import tensor_at

    file = io.BytesIO()
    tensors = {
        place.spec.name: tensor_at(image.memory, place).clone() for place in image.parts[0].tensors
    }
    torch.save({"tensors": tensors, "train": image.documents[TRAIN].decode()}, file)
    return file.getvalue()


def make(folder: Path) -> None:
    """Write folder/LAYOUT/ for every layout, and the content that a reader must find in all of
    them.
    """
    commits = {layout: _make_one(folder / layout, layout) for layout in LAYOUTS}
    found = image("group", STEP)
    tensors: dict[str, Any] = {}
    for part in found.parts:
        for place in part.tensors:
            spec = place.spec
            tensors[spec.name] = [
                spec.dtype,
                list(spec.shape),
                tensor_digest(spec.dtype, spec.shape, tensor_bytes(spec, STEP)),
            ]
    expected = {
        "commits": commits,
        "train": json.loads(found.documents[TRAIN]),
        "tensors": dict(sorted(tensors.items())),
    }
    (folder / EXPECTED).write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")


def _make_one(target: Path, layout: str) -> str:
    """Make the second of two checkpoints, so that it has a predecessor; returns its commit."""
    with tempfile.TemporaryDirectory() as scratch:
        store = CheckpointStore(Path(scratch) / "checkpoints")
        try:
            store.claim(0)
            store.save(image(layout, STEP - 1), 0)
            saved = store.save(image(layout, STEP), 0)
        finally:
            store.close()
        for path in sorted(
            store.root.glob(step_name(STEP) + ("/*" if layout == "group" else ".*"))
        ):
            copy = target / path.relative_to(store.root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            # without the file mode: any user of an installation may read it
            shutil.copyfile(path, copy)
    return saved.commit_sha256


if __name__ == "__main__":
    make(Path(sys.argv[1]))
