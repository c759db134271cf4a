"""Numbers as cells of the published tables: the published ones as printed, the measured ones with their interval."""

from __future__ import annotations

from collections.abc import Sequence

from ecrl_cli.metrics.statistics import Paired, Summary, ratio_of_means, summary
from ecrl_cli.replication.report.values import SuiteValues
from ecrl_cli.report.formats import NONE, plural

DATASETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
MODELS = {"r18": "ResNet-18", "r50": "ResNet-50"}
PUBLISHED = "published"


def suite_name(values: SuiteValues) -> str:
    return f"{DATASETS[values.dataset]} {MODELS[values.model]} {values.failure}"


def printed(value: float | None, unit: str = "") -> str:
    """A published number with its four decimals; percentages and differences with their sign."""
    if value is None:
        return NONE
    return f"{value:+.4f}{unit}" if unit in ("%", "pp") else f"{value:.4f}{unit}"


def signed(value: float) -> str:
    """A published difference in the measure's own unit."""
    return f"{value:+.4f}"


def estimate(found: Summary | None, *, sign: bool = False) -> str:
    """`mean [low, high]` by Student's t; without the interval where there is none."""
    if found is None:
        return NONE
    form = _signed if sign else _plain
    return _bounds(form(found.mean), found.low, found.high, form)


def percent(found: Summary | None) -> str:
    """A relative difference: mean of ratios with its interval."""
    return NONE if found is None else _bounds(_percent(found.mean), found.low, found.high, _percent)


def of_means(pair: Paired | None) -> str:
    """A relative difference: ratio of means with its bootstrap interval."""
    if pair is None or pair.ratio_of_means is None:
        return NONE
    return _bounds(_percent(pair.ratio_of_means), pair.ratio_low, pair.ratio_high, _percent)


def of_ratios(pair: Paired | None) -> str:
    return percent(pair.mean_of_ratios if pair else None)


def change(pair: Paired | None) -> str:
    """A difference in the measure's own unit."""
    return estimate(pair.difference if pair else None, sign=True)


def counted(number: int | None, one: str = "pair") -> str:
    return plural(number, one) if number else NONE


def published_ratio_of_means(values: Sequence[SuiteValues], variant: str, base: str) -> float:
    """Percent, over the suites' published goodputs."""
    ours, theirs = ([float(getattr(suite, name)) for suite in values] for name in (variant, base))
    return 100 * (ratio_of_means(ours, theirs) - 1)


def published_mean_of_ratios(values: Sequence[SuiteValues], name: str) -> float:
    """Percent; `name`: ovl_gain, blk_drop or ovl_drop, the suites' own percentages."""
    return summary([float(getattr(suite, name)) for suite in values]).mean


def _bounds(mean: str, low: float | None, high: float | None, form: object) -> str:
    if low is None or high is None or not callable(form):
        return mean
    return f"{mean} [{form(low)}, {form(high)}]"


def _plain(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def _signed(value: float) -> str:
    return "0" if value == 0 else f"{value:+.4g}"


def _percent(value: float) -> str:
    return f"{100 * value:+.2f}%"
