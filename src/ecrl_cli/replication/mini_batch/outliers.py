"""What lossy forward leaves out: how far the survivors' average is from everybody's, and whether the most unusual worker is among the dead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ecrl_cli.replication.mini_batch.scene import Scene
from ecrl_cli.replication.mini_batch.workers import average


def left_out(scene: Scene, mini_batch: int, percent: int, survivors: Sequence[int]) -> dict[str, Any]:
    """Over the gradients behind the failure. `off`: the distance between the two averages by the length of everybody's (None where that is 0).
    `outlier_lost`: whether the worker whose gradients lie farthest from the average of all is a casualty."""
    passes, rest = scene.remembered[mini_batch], slice(scene.places(percent), None)
    whole = _flat(average(passes, rest, len(passes)))
    left = [each for each in passes if each.worker in survivors]
    away = [float((_flat(each.gradients[rest]) - whole).norm()) for each in passes]
    length = float(whole.norm())
    distance = float((_flat(average(left, rest, len(left))) - whole).norm())
    return {"off": distance / length if length else None, "outlier_lost": passes[away.index(max(away))].worker not in survivors}


def _flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([each.reshape(-1) for each in tensors])
