"""The BCa bootstrap: bias-corrected and accelerated intervals (Efron 1987; Efron and Tibshirani 1993, 14.3), as in scipy.stats.bootstrap.

A report needs a thousand intervals over samples of few sizes. So the resamples of each size are drawn once, equal resamples of small samples
are merged into one row (there are ten for n = 3), and a statistic of sums is a matrix product with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

RESAMPLES, SEED, LEAST = 9999, 1987, 3
_FEW = 6

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], Any]


def bca(statistic: Statistic, n: int, confidence: float = 0.95) -> tuple[float, float] | None:
    """The interval of a statistic of n observations; None if n < 3 or BCa is undefined.

    `statistic` takes weights (k x n: how often each observation occurs in each of k samples) and returns its k values.
    """
    if n < LEAST:
        return None
    weights, times = resamples(n)
    value, drawn, left_out = (statistic(rows) for rows in (np.ones((1, n)), weights, np.ones((n, n)) - np.eye(n)))
    near = 1e-12 * max(float(np.abs(drawn).max()), 1e-300)  # values summed in a different order count as equal
    if float(np.ptp(drawn)) <= near:
        return float(value[0]), float(value[0])
    shares = _shares(_below(drawn - value, times, near), left_out.mean() - left_out, confidence)
    return None if shares is None else _quantiles(drawn, times, shares)


def _below(distances: Floats, times: NDArray[np.int64], near: float) -> float:
    """The share of resamples below the sample's own value; ties count half."""
    return float((times[distances < -near].sum() + times[distances <= near].sum()) / (2 * times.sum()))


def _shares(below: float, spread: Floats, confidence: float) -> tuple[float, float] | None:
    """The quantiles to take, corrected for bias (`below`) and skewness (of the jackknife's `spread`)."""
    bias, skew = float(ndtri(below)), float((spread**3).sum() / (spread**2).sum() ** 1.5 / 6)
    tail = float(ndtri((1 - confidence) / 2))
    low, high = (float(ndtr(bias + (bias + z) / (1 - skew * (bias + z)))) for z in (tail, -tail))
    return (low, high) if math.isfinite(low) and math.isfinite(high) and math.isfinite(bias) else None


def _quantiles(drawn: Floats, times: NDArray[np.int64], shares: tuple[float, float]) -> tuple[float, float]:
    """Linear interpolation as in numpy, of `drawn` in which the k-th value occurs `times[k]` times."""
    order = np.argsort(drawn)
    ordered, until = drawn[order], np.cumsum(times[order])

    def at(share: float) -> float:
        rest, whole = math.modf(share * (int(until[-1]) - 1))
        left, right = (float(ordered[np.searchsorted(until, min(whole + step, until[-1] - 1), side="right")]) for step in (0, 1))
        return left + rest * (right - left)

    return at(shares[0]), at(shares[1])


@lru_cache(maxsize=64)
def resamples(n: int) -> tuple[Floats, NDArray[np.int64]]:
    """k x n: how often each of n observations occurs in each distinct resample; and how often that one was drawn. Drawn as scipy does with this
    seed."""
    drawn = np.random.default_rng(SEED).integers(0, n, (RESAMPLES, n))
    cells = drawn + n * np.arange(RESAMPLES)[:, np.newaxis]
    counts = np.bincount(cells.ravel(), minlength=n * RESAMPLES).reshape(RESAMPLES, n)
    times = np.ones(RESAMPLES, dtype=np.int64)
    if n <= _FEW:
        counts, times = np.unique(counts, axis=0, return_counts=True)
    return counts.astype(np.float64), times
