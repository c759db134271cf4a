"""The state in a checkpoint or snapshot as one digest per component: what a rank must hold after it resumes from it. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ecrl_cli.checkpoint.format.manifest import Manifest, components_of
from ecrl_cli.checkpoint.format.train_document import TRAIN_STATE, rng_digest, train_digest

_SHARED = "rng.shared"


def tensor_digests(manifest: Manifest) -> dict[str, str]:
    """The SHA-256 of each tensor, by name."""
    return {name: entry.sha256 for part in manifest.parts.values() for name, entry in part.tensors.items()}


def saved_state(tensors: Mapping[str, str], train: Mapping[str, Any]) -> dict[str, str]:
    """Digests of parameters, buffers, optimizer; rng.rankN for each rank's RNG state (rng.shared if equal on all ranks); train, if train.json
    has all of it. Defined as in `records.rank_state.RankState`. `tensors`: SHA-256 by name; `train`: the content of train.json."""
    found = components_of(dict(tensors))
    saved = {"parameters": found.parameters, "buffers": found.buffers, "optimizer": found.optimizer}
    generators: dict[str, dict[str, str]] = {}
    for name, sha256 in tensors.items():
        if name.startswith("rng."):
            owner, _, generator = name.rpartition(".")
            generators.setdefault(owner, {})[generator] = sha256
    saved |= {owner: rng_digest(own) for owner, own in sorted(generators.items())}
    return saved | ({"train": train_digest(train)} if all(name in train for name in TRAIN_STATE) else {})


def due_on_rank(saved: Mapping[str, str], rank: int) -> dict[str, str]:
    """The digests that `rank` must have after it restored `saved`, by component. Without rng if the rank did not exist when it was saved: it then
    starts from its own seed."""
    due = {name: value for name, value in saved.items() if not name.startswith("rng.")}
    rng = saved.get(f"rng.rank{rank}", saved.get(_SHARED))
    return due | ({"rng": rng} if rng else {})
