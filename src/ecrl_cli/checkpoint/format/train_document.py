"""train.json: all of a training's state that is no tensor. Torch-free, so that the judge can read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ecrl_cli.checkpoint.format.canonical_json import digest

# What must be the same on all ranks and in every run that ends alike. The rest of train.json is one rank's (loss) or about the records (line_chain).
TRAIN_STATE = ("global_step", "sampler", "scheduler", "scaler", "optimizer")


def train_digest(document: Mapping[str, Any]) -> str:
    """One digest of the state in train.json; KeyError where a part of it is missing."""
    return digest({name: document[name] for name in TRAIN_STATE})


def rng_digest(tensors: Mapping[str, str]) -> str:
    """One digest of a rank's generators, from the name (python, numpy, torch, cuda) and the SHA-256 of each."""
    return digest(sorted(tensors.items()))
