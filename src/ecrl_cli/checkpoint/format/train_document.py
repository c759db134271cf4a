"""train.json, all training state that is not a tensor, and its place in the run. Torch-free, so
that verify can read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ecrl_cli.checkpoint.format.canonical_json import digest, parse
from ecrl_cli.checkpoint.format.manifest import Manifest, components_of

# Equal on all ranks, and in all runs that end in the same state. The rest of train.json is one
# rank's (loss) or about its log lines (line_chain).
TRAIN_STATE = ("global_step", "sampler", "scheduler", "scaler", "optimizer")

# What a restore reads, with the required types.
_RESTORED: dict[str, type | tuple[type, ...]] = {
    "global_step": int,
    "line_chain": list,
    "sampler": dict,
    "scheduler": dict,
    "scaler": (dict, type(None)),
    "optimizer": dict,
}

_SHARED = "rng.shared"


def train_digest(document: Mapping[str, Any]) -> str:
    """One digest of the state in train.json; KeyError if a part of it is missing."""
    return digest({name: document[name] for name in TRAIN_STATE})


def rng_digest(tensors: Mapping[str, str]) -> str:
    """One digest of a rank's RNG states, from the name (python, numpy, torch, cuda) and the digest
    of each.
    """
    return digest(sorted(tensors.items()))


def check_train_document(data: bytes) -> dict[str, Any]:
    """train.json, parsed; ValueError, naming what is missing, unless a rank can restore from it."""
    document = parse(data)
    if not isinstance(document, dict):
        raise ValueError("train.json is not an object")
    for name, kind in _RESTORED.items():
        if name not in document or not isinstance(document[name], kind):
            raise ValueError(f"train.json has no {name} that could be restored")
    groups = document["optimizer"].get("param_groups")
    if (
        not isinstance(groups, list)
        or not isinstance(document["optimizer"].get("scalars"), dict)
        or "host_keys" not in document["optimizer"]
    ):
        raise ValueError("train.json has no optimizer that could be restored")
    if any(
        not isinstance(document["sampler"].get(name), int)
        for name in ("epoch", "cursor_step", "seed")
    ):
        raise ValueError("train.json has no sampler that could be restored")
    return document


def check_place(document: Mapping[str, Any], manifest: Manifest) -> None:
    """ValueError if train.json (checked) is of another step, window or seed than `manifest`
    says.
    """
    sampler = document["sampler"]
    found = {
        "global_step": document["global_step"],
        **{name: sampler[name] for name in ("epoch", "cursor_step", "seed")},
    }
    for name, value in found.items():
        if value != getattr(manifest, name):
            raise ValueError(
                f"train.json says {name} {value}, the manifest {getattr(manifest, name)}"
            )


def tensor_digests(manifest: Manifest) -> dict[str, str]:
    """The digest of each tensor, by name."""
    return {
        name: entry.digest
        for part in manifest.parts.values()
        for name, entry in part.tensors.items()
    }


def saved_state(tensors: Mapping[str, str], train: Mapping[str, Any]) -> dict[str, str]:
    """Digests of parameters, buffers, optimizer; rng.rankN for each rank's RNG state (rng.shared if
    equal on all ranks); train, if train.json has all of it. Defined as in
    `records.state_digests.RankState`. `tensors`: digest by name; `train`: the content of
    train.json.
    """
    found = components_of(dict(tensors))
    saved = {"parameters": found.parameters, "buffers": found.buffers, "optimizer": found.optimizer}
    generators: dict[str, dict[str, str]] = {}
    for name, digest_ in tensors.items():
        if name.startswith("rng."):
            owner, _, generator = name.rpartition(".")
            generators.setdefault(owner, {})[generator] = digest_
    saved |= {owner: rng_digest(own) for owner, own in sorted(generators.items())}
    return saved | (
        {"train": train_digest(train)} if all(name in train for name in TRAIN_STATE) else {}
    )


def state_in(manifest: Manifest, train: bytes) -> dict[str, str]:
    """`saved_state` of a checkpoint by its manifest and the bytes of its train.json; without
    `train` where these are no JSON object.
    """
    try:
        document = parse(train)
    except ValueError:
        document = None
    return saved_state(tensor_digests(manifest), document if isinstance(document, dict) else {})


def due_on_rank(saved: Mapping[str, str], rank: int) -> dict[str, str]:
    """`due_on_ranks` of one rank."""
    return due_on_ranks(saved)(rank)


def due_on_ranks(saved: Mapping[str, str]) -> Callable[[int], dict[str, str]]:
    """By rank, the digests that it must have after it restored `saved`, by component. Without rng
    if the rank did not exist when it was saved: it then starts from its own seed.
    """
    shared = {name: value for name, value in saved.items() if not name.startswith("rng.")}

    def due(rank: int) -> dict[str, str]:
        rng = saved.get(f"rng.rank{rank}", saved.get(_SHARED))
        return shared | ({"rng": rng} if rng else {})

    return due


@dataclass(frozen=True)
class TrainPosition:
    """`global_step`: steps done; `epoch` and `cursor_step`: the next window; `line_chain`: this
    rank's running SHA-256 over its log lines.

    `loss`: that of the last step, None if there is none or it is not finite. A run that resumes at
    its target reports it as its last loss.
    `state_digest`: what this rank logged of its parameters, buffers and optimizer after that step;
    empty if it did not.
    """

    global_step: int
    epoch: int
    cursor_step: int
    seed: int
    line_chain: str
    loss: float | None = None
    state_digest: str = ""


NOWHERE = TrainPosition(global_step=0, epoch=0, cursor_step=0, seed=0, line_chain="")
