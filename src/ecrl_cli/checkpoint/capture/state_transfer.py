"""A rank's state as two messages, for one who has none: what it is (JSON), and its tensors' bytes one after another."""

from __future__ import annotations

from typing import Any

import torch

from ecrl_cli.checkpoint.capture.tensor_sources import dtype_of, raw, spec_of
from ecrl_cli.checkpoint.capture.train_position import TrainPosition
from ecrl_cli.checkpoint.capture.train_state import TrainState
from ecrl_cli.checkpoint.format.canonical_json import canonical_json, parse
from ecrl_cli.checkpoint.format.image import TensorSpec


def pack_state(pack: TrainState, progress: TrainPosition) -> tuple[bytes, torch.Tensor]:
    """The state of `pack`, generators and line chains excepted: these are each rank's own."""
    tensors = {source.name: source.find() for source in pack.sources()}
    table = [[name, spec.dtype, list(spec.shape)] for name, tensor in tensors.items() for spec in [spec_of(name, tensor)]]
    header = canonical_json({"train": parse(pack.train_document(progress, [])), "tensors": table})
    return header, torch.cat([raw(tensor) for tensor in tensors.values()])


def size_of(header: bytes) -> int:
    """Of the second message, in bytes."""
    return sum(spec.nbytes for spec in _specs(parse(header)))


def unpack_state(pack: TrainState, header: bytes, data: torch.Tensor) -> TrainPosition:
    """Become what the messages say; gives where this rank stands."""
    document = parse(header)
    specs = _specs(document)
    parts = torch.split(data, [spec.nbytes for spec in specs])
    tensors = {spec.name: part.clone().view(dtype_of(spec)).view(spec.shape) for spec, part in zip(specs, parts, strict=True)}
    return pack.become(tensors, document["train"])


def _specs(document: dict[str, Any]) -> list[TensorSpec]:
    return [TensorSpec(name, dtype, tuple(shape)) for name, dtype, shape in document["tensors"]]
