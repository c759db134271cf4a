"""Averages that ignore dormant workers: a rank set aside stays in its group and sends a token that is not counted.

A rank can leave and rejoin between any two averages, also within a mini-batch, without a new process group: each contribution carries a flag.
Contributions are gathered and added in rank order. An all-reduce would move less data, but its order of additions depends on the group size, so
with three or more ranks the bits would differ from those of a group of the active ranks alone.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


class DormantAverage:
    """Averages over the active ranks of `group` (None: the default group). Every rank must call `average`, active or not."""

    def __init__(self, group: Any = None) -> None:
        self._group = group
        self._size = dist.get_world_size(group)
        self.active = True

    def leave(self) -> None:
        """Send tokens from the next average on."""
        self.active = False

    def come_back(self) -> None:
        """Count again from the next average on. The caller must have given this rank the others' state by then."""
        self.active = True

    def average(self, tensor: torch.Tensor) -> int:
        """Write the active ranks' average into `tensor` on every rank and return their number; unchanged if there are none.

        A token is an empty contribution of the same size: a dormant rank's values are never read.
        """
        row = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)
        row[-1] = 1 if self.active else 0
        if self.active:
            row[:-1] = tensor.detach().reshape(-1)
        else:
            row[:-1] = 0
        rows = [torch.empty_like(row) for _ in range(self._size)]
        dist.all_gather(rows, row, group=self._group)
        counting = [each[:-1] for each in rows if each[-1] != 0]
        if counting:
            tensor.detach().copy_(mean(counting).view_as(tensor))
        return len(counting)


def mean(rows: list[torch.Tensor]) -> torch.Tensor:
    """Their sum in order, divided by their number."""
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total.div_(len(rows))
