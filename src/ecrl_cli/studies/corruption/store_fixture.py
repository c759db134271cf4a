"""A run directory with three acknowledged checkpoints and their records, to be tampered with."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ecrl_cli.checkpoint.format.canonical_json import canonical_json, digest
from ecrl_cli.checkpoint.format.hashing import chunk_sums
from ecrl_cli.checkpoint.format.image import CheckpointImage, TensorSpec, plan_image
from ecrl_cli.checkpoint.format.names import COMMIT, MANIFEST, MODEL, OPTIMIZER, step_name
from ecrl_cli.checkpoint.store.checkpoint_log import CheckpointLog
from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.checkpoint.store.synthetic import RUN_ID
from ecrl_cli.records.journal import Journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.studies.corruption.content import Parts, image_of, store_in, training_specs

STEPS = (10, 20, 30)
SIZES = (12_000, 6_000)


@dataclass(frozen=True)
class Scene:
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
        return _equal_files(training_specs(*SIZES, world_size=2))

    def image(self, step: int, *, seed: int | None = None, run_id: str = RUN_ID) -> CheckpointImage:
        return image_of(self.parts, self.seed if seed is None else seed, step, single=self.single, run_id=run_id)

    def files(self, step: int) -> tuple[Path, ...]:
        """The names in the checkpoint folder that belong to `step`."""
        path = self.step(step)
        return (path.with_suffix(".json"), path) if self.single else (path,)


@contextmanager
def scene(root: Path, rng: random.Random, *, single: bool) -> Iterator[Scene]:
    """Build a scene at `root`; the caller removes the folder."""
    store = store_in(root)
    made = Scene(RunLayout(root), store, rng, rng.getrandbits(48), single)
    attempt = made.layout.attempt(0)
    attempt.folder.mkdir(parents=True)
    log = CheckpointLog(Journal(attempt.checkpoints), made.layout, 0)
    try:
        for step in STEPS:
            log.committed(step, store.save(made.image(step), 0))
        yield made
    finally:
        log.close()
        store.close()


def forge(path: Path, edit: Callable[[dict[str, Any]], object], data: dict[str, bytes] | None = None) -> None:
    """Rewrite the group at `path` as an attacker without the key would: parts `data`, then `edit` on the manifest, then the commit."""
    manifest = json.loads((path / MANIFEST).read_bytes())
    for name, content in (data or {}).items():
        (path / name).write_bytes(content)
        manifest["parts"][name] |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest(), "chunk_crc32": list(chunk_sums(content))}
    edit(manifest)
    (path / MANIFEST).write_bytes(canonical_json(manifest))
    recommit(path, {"manifest_sha256": hashlib.sha256(canonical_json(manifest)).hexdigest()})


def recommit(path: Path, changes: dict[str, Any]) -> None:
    """Change COMMIT and update its own hash."""
    commit = json.loads((path / COMMIT).read_bytes()) | changes
    body = {key: value for key, value in commit.items() if key != "self_sha256"}
    (path / COMMIT).write_bytes(canonical_json(body | {"self_sha256": digest(body)}))


def _equal_files(parts: Parts) -> Parts:
    """The same, with the optimizer file as long as the model's, so that a swap does not show in the size."""
    by_name = {place.name: place.nbytes for place in plan_image(parts).parts}
    vector, *rest = parts[OPTIMIZER]
    longer = TensorSpec(vector.name, vector.dtype, (vector.shape[0] + (by_name[MODEL] - by_name[OPTIMIZER]) // 4,))
    grown = parts | {OPTIMIZER: [longer, *rest]}
    sizes = {place.name: place.nbytes for place in plan_image(grown).parts}
    return grown if sizes[MODEL] == sizes[OPTIMIZER] else _equal_files(grown)
