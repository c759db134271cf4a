"""Transfers a rank's state to a rank that has none, in two messages: a JSON header and the bytes of all tensors, concatenated."""

from __future__ import annotations

from typing import Any

import torch

from ecrl_cli.checkpoint.capture.tensor_sources import dtype_of, raw, spec_of
from ecrl_cli.checkpoint.capture.train_position import TrainPosition
from ecrl_cli.checkpoint.capture.train_state import TrainState
from ecrl_cli.checkpoint.format.canonical_json import canonical_json, parse
from ecrl_cli.checkpoint.format.image import TensorSpec


def pack_state(train_state: TrainState, progress: TrainPosition) -> tuple[bytes, torch.Tensor]:
    """Header and bytes of the state in `train_state`, without RNG states and line chains, which belong to each rank."""
    tensors = {source.name: source.find() for source in train_state.sources()}
    table = [[name, spec.dtype, list(spec.shape)] for name, tensor in tensors.items() for spec in [spec_of(name, tensor)]]
    header = canonical_json({"train": parse(train_state.train_document(progress, [])), "tensors": table})
    return header, torch.cat([raw(tensor) for tensor in tensors.values()])


def size_of(header: bytes) -> int:
    """Size in bytes of the second message, from the first."""
    return sum(spec.nbytes for spec in _specs(parse(header)))


def unpack_state(train_state: TrainState, header: bytes, data: torch.Tensor) -> TrainPosition:
    """Load the two messages into `train_state`; returns this rank's position."""
    document = parse(header)
    specs = _specs(document)
    parts = torch.split(data, [spec.nbytes for spec in specs])
    tensors = {spec.name: part.clone().view(dtype_of(spec)).view(spec.shape) for spec, part in zip(specs, parts, strict=True)}
    return train_state.become(tensors, document["train"])


def _specs(document: dict[str, Any]) -> list[TensorSpec]:
    return [TensorSpec(name, dtype, tuple(shape)) for name, dtype, shape in document["tensors"]]
