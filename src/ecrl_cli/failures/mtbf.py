"""`mtbf`: a random rank is killed at random steps. The steps between two failures are exponential with the mean `failure.mtbf_steps`.

The mean is in steps, not in seconds, so that the plan is known, printed and stored before the run, and every arm of a seed meets the same
one however fast it is. A mean in wall time would be a plan that nobody can write down beforehand; it comes with a later version.
"""

from __future__ import annotations

import math

import numpy as np

from ecrl_cli.config.elastic import ranks_at
from ecrl_cli.config.schema import RunConfig

STREAM = 0x6D746266  # "mtbf": a stream of the seed that nothing else draws from (epochs and ranks are small numbers)


def available(config: RunConfig) -> str | None:
    mean = config.failure.mtbf_steps
    return None if mean >= 1 else f"kind mtbf needs a mean of at least one step, failure.mtbf_steps is {mean:g}"


def hits(config: RunConfig) -> tuple[tuple[int, int], ...]:
    """Steps strictly rising and below the target, each with the rank that it takes.

    The gaps of one seed are the same draws whatever the mean: half the mean strikes at half the distances.
    """
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([config.seed, STREAM])))
    found: list[tuple[int, int]] = []
    instant, step = 0.0, 0
    while True:
        instant += config.failure.mtbf_steps * generator.exponential()
        share = generator.random()
        step = max(step + 1, math.ceil(instant))
        if step >= config.target_steps:
            return tuple(found)
        found.append((step, int(share * ranks_at(config, step))))
