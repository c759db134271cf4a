"""What a simulated job knows of a strategy: numbers, no names."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class JobSpec:
    """Seconds. `interval`: work between two checkpoints (inf: there are none). `checkpoint`: what one costs. A failure is fatal with probability
    `fatal`: back to the checkpoint, and down for `restart`. After another one the job is down for `pause`, has lost a uniform share of `grain`
    (work in hand) if it was at work, and `debt` more. Either wait begins anew if it is struck. `tax`: share by which all work takes longer.
    """

    interval: float = math.inf
    checkpoint: float = 0.0
    restart: float = 0.0
    fatal: float = 1.0
    pause: float = 0.0
    grain: float = 0.0
    debt: float = 0.0
    tax: float = 0.0
