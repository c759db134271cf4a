"""What the ranks of an attempt ask of each other beside the exchange of gradients."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.distributed as dist


class Collectives(Protocol):
    """Each call is collective. Not asked by a rank that is alone."""

    def barrier(self) -> None:
        """Nobody leaves before all have come."""

    def all_gather(self, own: torch.Tensor) -> list[torch.Tensor]:
        """`own` of every rank, in order."""


class DefaultGroup:
    """The default process group."""

    def barrier(self) -> None:
        dist.barrier()

    def all_gather(self, own: torch.Tensor) -> list[torch.Tensor]:
        rows = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(rows, own)
        return rows
