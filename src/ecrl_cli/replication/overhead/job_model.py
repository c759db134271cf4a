"""The parameters of a simulated job, independent of the strategy's name."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class JobSpec:
    """Seconds. `interval`: work between two checkpoints (inf: none). `checkpoint`: cost of one. A failure is fatal with probability `fatal`: the
    job returns to the checkpoint and is down for `restart`. After other failures it is down for `pause`, loses a uniform share of `grain` (the
    work in progress) if it was working, and `debt` on top. A failure during either wait starts it again. `tax`: relative slowdown of all work."""

    interval: float = math.inf
    checkpoint: float = 0.0
    restart: float = 0.0
    fatal: float = 1.0
    pause: float = 0.0
    grain: float = 0.0
    debt: float = 0.0
    tax: float = 0.0
