"""The range shown beside a mean: its 95% interval, or the range of two values; amounts, whose
intervals do not go below zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ecrl_cli.metrics.statistics import Summary, summary


def is_range(found: Summary) -> bool:
    """Whether there are two values only: their interval by Student's t says nothing, so their range
    is shown.
    """
    return found.n == 2


def span(found: Summary | None) -> tuple[float, float] | None:
    """The interval that is shown beside the mean, of two values their range; None for a single
    value.
    """
    if found is None or found.sd is None or found.low is None or found.high is None:
        return None
    half = found.sd / math.sqrt(2)  # from the mean of two values to either
    return (found.mean - half, found.mean + half) if is_range(found) else (found.low, found.high)


def amounts(values: Sequence[float]) -> Summary:
    """The summary of what cannot be below zero, such as seconds: nor does its interval."""
    found = summary(values)
    return (
        replace(found, low=max(0.0, found.low))
        if found.low is not None and min(values) >= 0
        else found
    )
