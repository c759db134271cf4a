"""Means with intervals, paired comparisons, the two kinds of ratio, and intervals for a proportion.

Distributions come from scipy.special: importing scipy.stats takes most of a second. Even that is
imported where an interval is worked out: a report on one run has none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Summary:
    """`sd`: sample standard deviation (n - 1). `low`, `high`: the 95% interval of the mean by
    Student's t. None where n < 2.

    `boot_low`, `boot_high`: the 95% interval of the mean by the BCa bootstrap. None where n < 3.
    """

    n: int
    mean: float
    sd: float | None
    low: float | None
    high: float | None
    boot_low: float | None = None
    boot_high: float | None = None


@dataclass(frozen=True)
class Interval:
    """A 95% two-sided interval for a proportion; `method` names it, since Wilson and
    Clopper-Pearson differ.
    """

    method: str
    low: float
    high: float


@dataclass(frozen=True)
class Signs:
    """The sign test: how many differences are positive, negative and exactly zero.

    `low`, `high`: Clopper-Pearson interval of the share of positives among the nonzero ones; `p`:
    two-sided. None if fewer than two are nonzero: one pair tells nothing of the next.
    """

    positive: int
    negative: int
    ties: int
    low: float | None
    high: float | None
    p: float | None


@dataclass(frozen=True)
class Paired:
    """`a` against `b` over n pairs; relative differences as fractions (-0.1: a tenth less).

    `ratio_of_means`: mean(a) / mean(b) - 1 with its BCa interval over the pairs; None if mean(b) is
    not positive, the interval also if a single b is not. `mean_of_ratios`: mean of a / b - 1 per
    pair; None if a b is not positive. `difference`, `signs`: of a - b.
    """

    n: int
    ratio_of_means: float | None
    ratio_low: float | None
    ratio_high: float | None
    mean_of_ratios: Summary | None
    difference: Summary
    signs: Signs


@dataclass(frozen=True)
class Line:
    """A straight line through points by least squares. `low`, `high`: the 95% interval of its slope
    by Student's t.
    """

    n: int
    slope: float
    intercept: float
    low: float
    high: float

    @property
    def zero(self) -> float | None:
        """Where it crosses zero; None if it is level."""
        return -self.intercept / self.slope if self.slope else None


def line(x: Sequence[float], y: Sequence[float], confidence: float = 0.95) -> Line | None:
    """The line through the points; None with fewer than three of them, or where all lie at one x.
    ValueError if the lengths differ.
    """
    if len(x) != len(y):
        raise ValueError(f"{len(x)} values against {len(y)}")
    if len(x) < 3 or min(x) == max(x):
        return None
    across, along = math.fsum(x) / len(x), math.fsum(y) / len(y)
    spread = math.fsum((value - across) ** 2 for value in x)
    slope = math.fsum((a - across) * (b - along) for a, b in zip(x, y, strict=True)) / spread
    intercept = along - slope * across
    residual = math.fsum((b - intercept - slope * a) ** 2 for a, b in zip(x, y, strict=True))
    half = _student(confidence, len(x) - 2) * math.sqrt(residual / (len(x) - 2) / spread)
    return Line(len(x), slope, intercept, slope - half, slope + half)


def summary(values: Sequence[float], confidence: float = 0.95) -> Summary:
    """Mean, deviation and intervals of `values`. ValueError if there are none."""
    if not values:
        raise ValueError("a summary needs at least one value")
    return _summary(tuple(map(float, values)), confidence)


@lru_cache(maxsize=16384)
def _summary(values: tuple[float, ...], confidence: float) -> Summary:
    n = len(values)
    mean = math.fsum(values) / n
    if n < 2:
        return Summary(n, mean, None, None, None)
    sd = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    half = _student(confidence, n - 1) * sd / math.sqrt(n)
    column = np.array(values)
    low, high = bca(lambda weights: weights @ column / weights.sum(axis=1), n, confidence) or (
        None,
        None,
    )
    return Summary(n, mean, sd, mean - half, mean + half, low, high)


def _special() -> Any:
    from scipy import special

    return special


@lru_cache(maxsize=256)
def _student(confidence: float, freedom: int) -> float:
    return float(_special().stdtrit(freedom, (1 + confidence) / 2))


def prediction(seen: Summary, n: int, confidence: float = 0.95) -> float:
    """Half the prediction interval (Student's t) for the mean of `n` further values like those
    `seen`. ValueError if only one was seen.
    """
    if seen.sd is None:
        raise ValueError("a prediction needs at least two values")
    return _student(confidence, seen.n - 1) * seen.sd * math.sqrt(1 / n + 1 / seen.n)


def ratio_of_means(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """mean(numerators) / mean(denominators): the ratio of the totals."""
    return (math.fsum(numerators) / len(numerators)) / (math.fsum(denominators) / len(denominators))


def paired(a: Sequence[float], b: Sequence[float]) -> Paired:
    """Compare `a` with `b`, pair by pair. ValueError if there are no pairs or the lengths
    differ.
    """
    if len(a) != len(b):
        raise ValueError(f"{len(a)} values against {len(b)}")
    return _paired(tuple(map(float, a)), tuple(map(float, b)))


@lru_cache(maxsize=16384)
def _paired(a: tuple[float, ...], b: tuple[float, ...]) -> Paired:
    differences = [x - y for x, y in zip(a, b, strict=True)]
    low, high = ratio_interval(a, b) or (None, None)
    return Paired(
        n=len(a),
        ratio_of_means=ratio_of_means(a, b) - 1 if math.fsum(b) > 0 else None,
        ratio_low=None if low is None else low - 1,
        ratio_high=None if high is None else high - 1,
        mean_of_ratios=(
            summary([x / y - 1 for x, y in zip(a, b, strict=True)])
            if min(b, default=0) > 0
            else None
        ),
        difference=summary(differences),
        signs=signs(differences),
    )


def ratio_interval(a: Sequence[float], b: Sequence[float]) -> tuple[float, float] | None:
    """The 95% BCa interval of mean(a) / mean(b) over pairs; None for fewer than three, or if a b is
    not positive.
    """
    if not b or min(b) <= 0:
        return None
    above, below = np.array(a), np.array(b)
    return bca(lambda weights: (weights @ above) / (weights @ below), len(a))


def signs(differences: Sequence[float]) -> Signs:
    """The sign test of `differences`."""
    positive, negative = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    return _signs(positive, negative, len(differences) - positive - negative)


@lru_cache(maxsize=16384)
def _signs(positive: int, negative: int, ties: int) -> Signs:
    decided = positive + negative
    if decided < 2:
        return Signs(positive, negative, ties, None, None, None)
    share = clopper_pearson(positive, decided)
    p = min(1.0, 2 * float(_special().bdtr(min(positive, negative), decided, 0.5)))
    return Signs(positive, negative, ties, share.low, share.high, p)


def wilson(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """The Wilson score interval: 0 of 10 gives [0, 27.8]%. ValueError unless 0 <= successes <= n
    and n >= 1.
    """
    _proportion(successes, n)
    z = float(_special().ndtri((1 + confidence) / 2))
    centre, spread = (
        successes + z * z / 2,
        z * math.sqrt(successes * (n - successes) / n + z * z / 4),
    )
    low = 0.0 if successes == 0 else (centre - spread) / (n + z * z)
    high = 1.0 if successes == n else (centre + spread) / (n + z * z)
    return Interval("Wilson", low, high)


def clopper_pearson(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """The exact interval: 0 of 10 gives [0, 30.8]%. ValueError unless 0 <= successes <= n and n >=
    1.
    """
    _proportion(successes, n)
    tail = (1 - confidence) / 2
    low = (
        0.0 if successes == 0 else float(_special().betaincinv(successes, n - successes + 1, tail))
    )
    high = (
        1.0
        if successes == n
        else float(_special().betaincinv(successes + 1, n - successes, 1 - tail))
    )
    return Interval("Clopper-Pearson", low, high)


def _proportion(successes: int, n: int) -> None:
    if not 0 <= successes <= n or n < 1:
        raise ValueError(f"{successes} of {n} is no proportion")


# The BCa bootstrap: bias-corrected and accelerated intervals (Efron 1987; Efron and Tibshirani
# 1993, 14.3), as in scipy.stats.bootstrap.
#  A report needs a thousand intervals over samples of few sizes. So the resamples of each size are
# drawn once, equal resamples of small samples are merged into one row (there are ten for n = 3),
# and a statistic of sums is a matrix product with them.
RESAMPLES, SEED, LEAST = 9999, 1987, 3
_FEW = 6

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], Any]


def bca(statistic: Statistic, n: int, confidence: float = 0.95) -> tuple[float, float] | None:
    """The interval of a statistic of n observations; None if n < 3 or BCa is undefined.

    `statistic` takes weights (k x n: how often each observation occurs in each of k samples) and
    returns its k values.
    """
    if n < LEAST:
        return None
    weights, times = resamples(n)
    value, drawn, left_out = (
        statistic(rows) for rows in (np.ones((1, n)), weights, np.ones((n, n)) - np.eye(n))
    )
    # values summed in a different order count as equal
    near = 1e-12 * max(float(np.abs(drawn).max()), 1e-300)
    if float(np.ptp(drawn)) <= near:
        return float(value[0]), float(value[0])
    shares = _shares(_below(drawn - value, times, near), left_out.mean() - left_out, confidence)
    return None if shares is None else _quantiles(drawn, times, shares)


def _below(distances: Floats, times: NDArray[np.int64], near: float) -> float:
    """The share of resamples below the sample's own value; ties count half."""
    return float(
        (times[distances < -near].sum() + times[distances <= near].sum()) / (2 * times.sum())
    )


def _shares(below: float, spread: Floats, confidence: float) -> tuple[float, float] | None:
    """The quantiles to take, corrected for bias (`below`) and skewness (of the jackknife's
    `spread`).
    """
    ndtr, ndtri = _special().ndtr, _special().ndtri
    bias, skew = float(ndtri(below)), float((spread**3).sum() / (spread**2).sum() ** 1.5 / 6)
    tail = float(ndtri((1 - confidence) / 2))
    low, high = (float(ndtr(bias + (bias + z) / (1 - skew * (bias + z)))) for z in (tail, -tail))
    return (
        (low, high) if math.isfinite(low) and math.isfinite(high) and math.isfinite(bias) else None
    )


def _quantiles(
    drawn: Floats, times: NDArray[np.int64], shares: tuple[float, float]
) -> tuple[float, float]:
    """Linear interpolation as in numpy, of `drawn` in which the k-th value occurs `times[k]`
    times.
    """
    order = np.argsort(drawn)
    ordered, until = drawn[order], np.cumsum(times[order])

    def at(share: float) -> float:
        rest, whole = math.modf(share * (int(until[-1]) - 1))
        left, right = (
            float(ordered[np.searchsorted(until, min(whole + step, until[-1] - 1), side="right")])
            for step in (0, 1)
        )
        return left + rest * (right - left)

    return at(shares[0]), at(shares[1])


@lru_cache(maxsize=64)
def resamples(n: int) -> tuple[Floats, NDArray[np.int64]]:
    """k x n: how often each of n observations occurs in each distinct resample; and how often that
    one was drawn. Drawn as scipy does with this seed.
    """
    drawn = np.random.default_rng(SEED).integers(0, n, (RESAMPLES, n))
    cells = drawn + n * np.arange(RESAMPLES)[:, np.newaxis]
    counts = np.bincount(cells.ravel(), minlength=n * RESAMPLES).reshape(RESAMPLES, n)
    times = np.ones(RESAMPLES, dtype=np.int64)
    if n <= _FEW:
        counts, times = np.unique(counts, axis=0, return_counts=True)
    return counts.astype(np.float64), times
