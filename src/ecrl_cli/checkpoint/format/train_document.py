"""train.json: all training state that is not a tensor. Torch-free, so that verify can read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ecrl_cli.checkpoint.format.canonical_json import digest, parse

# Equal on all ranks, and in all runs that end in the same state. The rest of train.json is one rank's (loss) or about its log lines (line_chain).
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


def train_digest(document: Mapping[str, Any]) -> str:
    """One digest of the state in train.json; KeyError if a part of it is missing."""
    return digest({name: document[name] for name in TRAIN_STATE})


def rng_digest(tensors: Mapping[str, str]) -> str:
    """One digest of a rank's RNG states, from the name (python, numpy, torch, cuda) and the SHA-256 of each."""
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
    if not isinstance(groups, list) or not isinstance(document["optimizer"].get("scalars"), dict) or "host_keys" not in document["optimizer"]:
        raise ValueError("train.json has no optimizer that could be restored")
    if any(not isinstance(document["sampler"].get(name), int) for name in ("epoch", "cursor_step", "seed")):
        raise ValueError("train.json has no sampler that could be restored")
    return document
