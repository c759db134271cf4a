"""A round of collectives between two barriers, whose results are applied only after all of them have finished."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ecrl_cli.checkpoint.capture.tensor_sources import raw


@dataclass
class Bucket:
    """One collective: `own` is the unchanged input, `sent` the copy in flight. Averages over all ranks, or (`led`) broadcasts from the first."""

    own: torch.Tensor
    led: bool = False
    sent: torch.Tensor | None = None
    work: Any = None


@dataclass
class ExchangeRound:
    """All collectives before a barrier: the gradients of a step and the first rank's buffers, or one other collective.

    `place`: number of the round; `done`: how many of its buckets have finished. `redoes`: whether the survivors finish it after a death.
    """

    place: int
    redoes: bool = False
    buckets: list[Bucket] = field(default_factory=list)
    done: int = 0


def gathered(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The bytes of `tensors`, concatenated: a uint8 vector."""
    return torch.cat([raw(tensor) for tensor in tensors])


def scatter(data: torch.Tensor | None, tensors: Sequence[torch.Tensor]) -> None:
    """Write the bytes from `gathered` into `tensors`, which must have the same shapes and dtypes."""
    assert data is not None
    with torch.no_grad():
        for tensor, part in zip(tensors, torch.split(data, [tensor.numel() * tensor.element_size() for tensor in tensors]), strict=True):
            tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))
