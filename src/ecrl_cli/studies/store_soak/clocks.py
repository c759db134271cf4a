"""Clocks that jump: the store may record times but must never compare two."""

from __future__ import annotations

import random
import time


class JumpingClock:
    """Replaces the module `time` where the product reads clocks."""

    CLOCK_MONOTONIC = time.CLOCK_MONOTONIC

    def __init__(self) -> None:
        self._now, self._pace = 1e9, 1e-6

    def jump(self, salt: int) -> None:
        """Set the clock to any time and pace, including standing still and running backwards."""
        rng = random.Random(salt)
        self._now, self._pace = rng.uniform(0, 4e9), rng.choice((0.0, 1e-6, -1.0, 3600.0))

    def time(self) -> float:
        return self.clock_gettime(0)

    def clock_gettime(self, which: int) -> float:
        self._now += self._pace
        return self._now
