"""A rank's state as two messages, for one who has none: what it is (JSON), and its tensors' bytes one after another."""

from __future__ import annotations

import math
from typing import Any

import torch

from ecrl_cli.checkpoint.canonical import canonical, parse
from ecrl_cli.checkpoint.live import spec_of
from ecrl_cli.checkpoint.progress import Progress
from ecrl_cli.checkpoint.state import StatePack


def handed(pack: StatePack, progress: Progress) -> tuple[bytes, torch.Tensor]:
    """The state of `pack`, generators and line chains excepted: these are each rank's own."""
    tensors = {source.name: source.find() for source in pack.sources()}
    table = [[name, spec.dtype, list(spec.shape)] for name, tensor in tensors.items() for spec in [spec_of(name, tensor)]]
    header = canonical({"train": parse(pack.train_document(progress, [])), "tensors": table})
    flat = [tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for tensor in tensors.values()]
    return header, torch.cat(flat)


def size_of(header: bytes) -> int:
    """Of the second message, in bytes."""
    return sum(_nbytes(dtype, shape) for _, dtype, shape in parse(header)["tensors"])


def take(pack: StatePack, header: bytes, data: torch.Tensor) -> Progress:
    """Become what the messages say; gives where this rank stands."""
    document = parse(header)
    table = document["tensors"]
    parts = torch.split(data, [_nbytes(dtype, shape) for _, dtype, shape in table])
    tensors = {name: part.clone().view(_dtype(dtype)).view(shape) for (name, dtype, shape), part in zip(table, parts, strict=True)}
    return pack.become(tensors, document["train"])


def _dtype(name: str) -> Any:
    return getattr(torch, name.removeprefix("torch."))


def _nbytes(dtype: str, shape: list[int]) -> int:
    return int(math.prod(shape) * _dtype(dtype).itemsize)
