"""Seeds for a job that sets none itself (ECRL_SEED): the same in every process and attempt, before
the job's own code draws.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Optional

SEED = "ECRL_SEED"


def seed() -> Optional[int]:
    """None where none is asked for."""
    text = os.environ.get(SEED, "")
    return int(text) if text.isdigit() else None


def seed_python() -> None:
    number = seed()
    if number is not None:
        import random

        random.seed(number)


def seed_numpy(module: Any) -> None:
    """numpy.random's global generator; one that the job makes by `default_rng()` stays unseeded."""
    number = seed()
    if number is not None:
        module.seed(number % 2**32)


def seed_torch(module: Any) -> None:
    number = seed()
    if number is not None:
        module.manual_seed(number)


PATCHES: Dict[str, Callable[[Any], None]] = {"numpy.random": seed_numpy}
