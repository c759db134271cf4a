"""What ranks exchange together, and keep untouched until all of it has been exchanged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ecrl_cli.checkpoint.capture.tensor_sources import raw


@dataclass
class Bucket:
    """One exchange: `own` as it was, `sent` the copy under exchange. The mean over all, or (`led`) what the first of them has."""

    own: torch.Tensor
    led: bool = False
    sent: torch.Tensor | None = None
    work: Any = None


@dataclass
class ExchangeRound:
    """What all ranks do before they pass a barrier: the gradients of a step and the leader's buffers, or one other exchange.

    `place` counts the blocks; `done` of its items have been exchanged. `redoes`: whether the survivors of a death bring it to its end.
    """

    place: int
    redoes: bool = False
    buckets: list[Bucket] = field(default_factory=list)
    done: int = 0


def gathered(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The bytes of `tensors`, one after another."""
    return torch.cat([raw(tensor) for tensor in tensors])


def scatter(data: torch.Tensor | None, tensors: Sequence[torch.Tensor]) -> None:
    """Write what `gathered` gave of such tensors into these."""
    assert data is not None
    with torch.no_grad():
        for tensor, part in zip(tensors, torch.split(data, [tensor.numel() * tensor.element_size() for tensor in tensors]), strict=True):
            tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))
