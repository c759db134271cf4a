"""Means with intervals, ratios by their names, and intervals for a proportion by theirs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scipy import stats


@dataclass(frozen=True)
class Summary:
    """`sd`: sample standard deviation (n - 1). `low`, `high`: the 95% interval of the mean by Student's t. None where n < 2."""

    n: int
    mean: float
    sd: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Interval:
    """A 95% two-sided interval for a proportion; `method` is its name: Wilson and Clopper-Pearson are not the same."""

    method: str
    low: float
    high: float


def summary(values: Sequence[float], confidence: float = 0.95) -> Summary:
    """ValueError for no values."""
    n = len(values)
    if n == 0:
        raise ValueError("a summary needs at least one value")
    mean = math.fsum(values) / n
    if n < 2:
        return Summary(n, mean, None, None, None)
    sd = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    half = float(stats.t.ppf((1 + confidence) / 2, n - 1)) * sd / math.sqrt(n)
    return Summary(n, mean, sd, mean - half, mean + half)


def ratio_of_means(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """mean(numerators) / mean(denominators): what the whole of it cost."""
    return (math.fsum(numerators) / len(numerators)) / (math.fsum(denominators) / len(denominators))


def mean_of_ratios(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """mean of numerator / denominator over pairs: what a typical pair shows. Not the ratio of means."""
    return math.fsum(n / d for n, d in zip(numerators, denominators, strict=True)) / len(numerators)


def wilson(successes: int, n: int) -> Interval:
    """The score interval: 0 of 10 gives [0, 27.8]%."""
    return _proportion(successes, n, "wilson", "Wilson")


def clopper_pearson(successes: int, n: int) -> Interval:
    """The exact interval: 0 of 10 gives [0, 30.8]%."""
    return _proportion(successes, n, "exact", "Clopper-Pearson")


def _proportion(successes: int, n: int, method: Literal["wilson", "exact"], label: str) -> Interval:
    bounds = stats.binomtest(successes, n).proportion_ci(confidence_level=0.95, method=method)
    return Interval(label, float(bounds.low), float(bounds.high))
