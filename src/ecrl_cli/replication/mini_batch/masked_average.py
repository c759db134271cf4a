"""Dormant workers: a rank that is set aside stays in its group and contributes a token that no average counts.

It can leave and come back between any two averages, also within a mini-batch, and no group is made anew: whether a rank counts travels with
each contribution. The contributions are gathered and added in the order of the ranks. An all-reduce would move less, but it adds in an order
that depends on the size of the group: among three or more the bits would differ from those of a group of the active ones alone.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


class DormantAverage:
    """Averages among the active ranks of `group` (None: the default one). Every rank of the group calls `average`, active or not."""

    def __init__(self, group: Any = None) -> None:
        self._group = group
        self._size = dist.get_world_size(group)
        self.active = True

    def leave(self) -> None:
        """From the next average on this rank contributes tokens."""
        self.active = False

    def come_back(self) -> None:
        """From the next average on this rank counts. Its state must be that of the others by then: what it missed it must be given."""
        self.active = True

    def average(self, tensor: torch.Tensor) -> int:
        """Put into `tensor`, on every rank, the average of the active ones'; gives how many these are. Where there are none it is left as it is.

        A token is an empty contribution of the same size: a dormant rank's own values are never looked at.
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
    """Their sum from the first to the last, divided by their number."""
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total.div_(len(rows))
