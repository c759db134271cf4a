"""Torch-free checkpoints with realistic content: zero, small and random values as in real training;
stores and run directories that hold them.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from ecrl_cli.checkpoint.format.image import CheckpointImage, CheckpointMeta, TensorSpec, plan_image
from ecrl_cli.checkpoint.format.names import MODEL, OPTIMIZER, RNG, step_name
from ecrl_cli.checkpoint.store.checkpoint_log import CheckpointLog
from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.checkpoint.store.synthetic import RUN_ID
from ecrl_cli.records.journal import Journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.studies.frame.store_fixture import files_under, image_from, in_one_part, store_config

GENERATOR = 5056  # size of torch's CPU generator state in bytes
PUBLISHED = (128 * 1024, 64 * 1024)  # model, optimizer

Parts = dict[str, list[TensorSpec]]


def training_specs(
    model_bytes: int, optimizer_bytes: int, world_size: int, generator: int = GENERATOR
) -> Parts:
    """A layer with bias and batch norm, momentum, a step counter, and every rank's generator."""
    side = 64
    model = [
        TensorSpec("parameters.layer.weight", "torch.float32", (model_bytes // 4 - 4 * side,)),
        *(
            TensorSpec(name, "torch.float32", (side,))
            for name in ("parameters.layer.bias", "parameters.norm.weight")
        ),
        *(
            TensorSpec(f"buffers.norm.{name}", "torch.float32", (side,))
            for name in ("running_mean", "running_var")
        ),
        TensorSpec("buffers.norm.num_batches_tracked", "torch.int64", ()),
    ]
    optimizer = [
        TensorSpec(
            "optimizer.layer.weight.momentum_buffer",
            "torch.float32",
            (optimizer_bytes // 4 - side,),
        ),
        TensorSpec("optimizer.layer.bias.momentum_buffer", "torch.float32", (side,)),
        TensorSpec("optimizer.layer.weight.step", "torch.float32", ()),
    ]
    generators = [
        TensorSpec(f"rng.rank{rank}.torch", "torch.uint8", (generator,))
        for rank in range(world_size)
    ]
    return {MODEL: model, OPTIMIZER: optimizer, RNG: generators}


def image_of(
    parts: Parts, seed: int, step: int, *, single: bool = False, run_id: str = RUN_ID
) -> CheckpointImage:
    """The snapshot of `step`; its bytes are a function of (seed, step)."""
    rng, ranks = np.random.default_rng((seed, step)), len(parts[RNG])
    train = {
        "global_step": step,
        "line_chain": [""] * ranks,
        "schema_version": 1,
        "sampler": {"epoch": 0, "seed": seed},
    }
    stamp = CheckpointMeta(run_id, step, 0, step, seed, ranks)
    return image_from(
        in_one_part(parts, single=single),
        lambda place: tensor_bytes(place.spec, step, rng),
        stamp,
        train,
    )


def tensor_bytes(spec: TensorSpec, step: int, rng: np.random.Generator) -> bytes:
    """The bytes of a tensor of this name and type after `step` steps; zero where training leaves
    zeros.
    """
    count, kind = int(np.prod(spec.shape, dtype=np.int64)), spec.dtype.removeprefix("torch.")
    if spec.name.startswith("rng."):  # 32-bit words in 64-bit slots
        return rng.integers(0, 2**32, -(-count // 8), dtype=np.uint64).tobytes()[:count]
    if spec.name.endswith(("bias", "running_mean", "bias.momentum_buffer")):
        return bytes(spec.nbytes)
    if not count or kind == "bool":
        return rng.integers(0, 2, count, dtype=np.uint8).tobytes()
    if kind == "bfloat16":  # the upper half of a float32
        return (
            (rng.standard_normal(count, dtype=np.float32).view(np.uint32) >> 16)
            .astype("<u2")
            .tobytes()
        )
    if kind == "complex64":
        return rng.standard_normal(2 * count, dtype=np.float32).tobytes()
    if kind.startswith("float"):
        return rng.standard_normal(count).astype(kind).tobytes()
    return np.full(count, step % 100, dtype=kind).tobytes()


@contextmanager
def store_in(root: Path, mode: str = "unsafe") -> Iterator[CheckpointStore]:
    """A store in `root`/checkpoints that retires nothing; by default unsynced, as what it holds is
    read back at once.
    """
    root.mkdir(parents=True, exist_ok=True)
    with closing(CheckpointStore(root / "checkpoints", store_config(mode, keep=1000))) as store:
        store.claim(0)
        yield store


def committed(root: Path, parts: Parts, seed: int, *, single: bool) -> tuple[str, dict[str, bytes]]:
    """Steps 10 and 20 saved at `root`, which is removed again: the name of the newest, and every
    file of the store by path.
    """
    with store_at(root) as store:
        for step in (10, 20):
            path = store.save(image_of(parts, seed, step, single=single), 0).path
        return path.name, files_under(store.root)


@contextmanager
def store_at(root: Path, mode: str = "unsafe") -> Iterator[CheckpointStore]:
    """The same; on exit `root` is removed."""
    try:
        with store_in(root, mode) as store:
            yield store
    finally:
        shutil.rmtree(root)


STEPS = (10, 20, 30)


@dataclass(frozen=True)
class StoreFixture:
    """`single`: the layout. All random choices come from `rng`."""

    layout: RunLayout
    store: CheckpointStore
    rng: random.Random
    seed: int
    single: bool

    @property
    def checkpoints(self) -> Path:
        return self.layout.checkpoints

    def step(self, step: int) -> Path:
        return self.checkpoints / (step_name(step) + (".safetensors" if self.single else ""))

    @property
    def newest(self) -> Path:
        return self.step(STEPS[-1])

    @cached_property
    def parts(self) -> Parts:
        return _equal_files(training_specs(12_000, 6_000, world_size=2))

    def image(self, step: int, *, seed: int | None = None, run_id: str = RUN_ID) -> CheckpointImage:
        return image_of(
            self.parts, self.seed if seed is None else seed, step, single=self.single, run_id=run_id
        )

    def files(self, step: int) -> tuple[Path, ...]:
        """The names in the checkpoint folder that belong to `step`."""
        path = self.step(step)
        return (path.with_suffix(".json"), path) if self.single else (path,)


@contextmanager
def fixture(root: Path, rng: random.Random, *, single: bool) -> Iterator[StoreFixture]:
    """Build one at `root`; the caller removes the folder."""
    with store_in(root) as store:
        made = StoreFixture(RunLayout(root), store, rng, rng.getrandbits(48), single)
        attempt = made.layout.attempt(0)
        attempt.folder.mkdir(parents=True)
        with closing(CheckpointLog(Journal(attempt.checkpoints), made.layout, 0)) as log:
            for step in STEPS:
                log.committed(step, store.save(made.image(step), 0))
            yield made


def _equal_files(parts: Parts) -> Parts:
    """The same, with the optimizer file as long as the model's, so that a swap does not show in the
    size.
    """
    by_name = {place.name: place.nbytes for place in plan_image(parts).parts}
    vector, *rest = parts[OPTIMIZER]
    longer = TensorSpec(
        vector.name, vector.dtype, (vector.shape[0] + (by_name[MODEL] - by_name[OPTIMIZER]) // 4,)
    )
    grown = parts | {OPTIMIZER: [longer, *rest]}
    sizes = {place.name: place.nbytes for place in plan_image(grown).parts}
    return grown if sizes[MODEL] == sizes[OPTIMIZER] else _equal_files(grown)
