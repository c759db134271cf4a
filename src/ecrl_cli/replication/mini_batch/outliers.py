"""What lossy forward leaves out: the distance of the survivors' average from the full one, and whether the worker farthest from it is dead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ecrl_cli.replication.mini_batch.scene import Scene
from ecrl_cli.replication.mini_batch.workers import average


def left_out(scene: Scene, mini_batch: int, percent: int, survivors: Sequence[int]) -> dict[str, Any]:
    """Computed over the gradients after the failure. `off`: distance of the two averages divided by the norm of the full one (None if that is 0).
    `outlier_lost`: whether the worker whose gradients are farthest from the full average is a casualty."""
    passes, rest = scene.remembered[mini_batch], slice(scene.places(percent), None)
    whole = _flat(average(passes, rest, len(passes)))
    left = [each for each in passes if each.worker in survivors]
    away = [float((_flat(each.gradients[rest]) - whole).norm()) for each in passes]
    length = float(whole.norm())
    distance = float((_flat(average(left, rest, len(left))) - whole).norm())
    return {"off": distance / length if length else None, "outlier_lost": passes[away.index(max(away))].worker not in survivors}


def _flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([each.reshape(-1) for each in tensors])
