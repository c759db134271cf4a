"""`mtbf`: kills of random ranks at random times. The gaps are exponential with mean `failure.mtbf_steps` or `failure.mtbf_s`.

A mean in steps gives every arm of a seed the same plan, whatever its speed. A mean in seconds of supervised time models a machine;
the number of failures then depends on the run's duration.
"""

from __future__ import annotations

import math

import numpy as np

from ecrl_cli.config.elastic import ranks_at, sizes
from ecrl_cli.config.fault_spec import Entry
from ecrl_cli.config.limits import MOST_FAILURES
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import ConfigError
from ecrl_cli.failures.rank_faults import Kill

STREAM = 0x6D746266  # "mtbf": a stream of the seed that nothing else uses (epochs and ranks are small numbers)


def entries(config: RunConfig) -> tuple[Entry, ...]:
    """Kills in order, each of one rank. The gaps of a seed scale with the mean: half the mean gives half the gaps.

    ConfigError if the mean is less than a step.
    """
    if config.failure.mtbf_steps < 1 and not config.failure.mtbf_s:
        fact = f"kind mtbf needs a mean of at least one step, failure.mtbf_steps is {config.failure.mtbf_steps:g}"
        raise ConfigError("failure", fact)
    return _by_time(config) if config.failure.mtbf_s else _by_steps(config)


def _by_steps(config: RunConfig) -> tuple[Entry, ...]:
    """Kills at strictly increasing steps below the target."""
    generator = _generator(config)
    found: list[Entry] = []
    instant, step = 0.0, 0
    while True:
        instant += config.failure.mtbf_steps * generator.exponential()
        share = generator.random()
        step = max(step + 1, math.ceil(instant))
        if step >= config.target_steps or len(found) > MOST_FAILURES:  # larger plans are refused
            return tuple(found)
        found.append(Entry(Kill.name, step, who=(int(share * ranks_at(config, step)),)))


def _by_time(config: RunConfig) -> tuple[Entry, ...]:
    """Kills at instants of supervised time, as many as there may be restarts: the run may end before the last."""
    generator = _generator(config)
    found: list[Entry] = []
    instant = 0.0
    for _ in range(min(config.supervision.max_restarts, MOST_FAILURES)):
        instant += config.failure.mtbf_s * generator.exponential()
        found.append(Entry(Kill.name, moment="wall", who=(int(generator.random() * min(sizes(config))),), after_s=instant))
    return tuple(found)


def _generator(config: RunConfig) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([config.seed, STREAM])))
