"""The collectives that ranks use besides the gradient all-reduce."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.distributed as dist


class Collectives(Protocol):
    """Barrier and all-gather; not called with a world size of 1."""

    def barrier(self) -> None:
        """Return once every rank has called it."""

    def all_gather(self, own: torch.Tensor) -> list[torch.Tensor]:
        """`own` of every rank, in rank order."""


class DefaultGroup:
    """The default process group."""

    def barrier(self) -> None:
        dist.barrier()

    def all_gather(self, own: torch.Tensor) -> list[torch.Tensor]:
        rows = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(rows, own)
        return rows
