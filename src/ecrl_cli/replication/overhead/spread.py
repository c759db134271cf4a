"""Means of repetitions with Student's interval, row by row; the bootstrap of `metrics.statistics` would take longer than the simulation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import special

from ecrl_cli.replication.overhead.simulate import Floats


class Estimate(NamedTuple):
    """The mean and its 95% interval."""

    mean: float
    low: float
    high: float


def told(values: Floats) -> Estimate:
    """The estimate of one row of repetitions."""
    mean, half = float(values.mean()), float(halves(values[np.newaxis])[0])
    return Estimate(mean, mean - half, mean + half)


def inverse(told: Estimate) -> Estimate:
    """Work as a share of wall time, from wall times in multiples of the work: the inverse of their mean, at most 1."""
    return Estimate(1 / told.mean, 1 / told.high, 1 / max(1.0, told.low))


def halves(rows: Floats) -> Floats:
    """Half-width of the mean's interval, per row."""
    n = rows.shape[1]
    return np.asarray(float(special.stdtrit(n - 1, 0.975)) * rows.std(axis=1, ddof=1) / np.sqrt(n))
