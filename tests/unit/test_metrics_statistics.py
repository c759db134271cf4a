"""The statistics against scipy's own, against numbers known by hand, and against the published ones
they are to reproduce.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from ecrl_cli.metrics.overlap import RunCosts, overlap
from ecrl_cli.metrics.statistics import (
    RESAMPLES,
    SEED,
    bca,
    clopper_pearson,
    line,
    paired,
    prediction,
    ratio_of_means,
    signs,
    summary,
    wilson,
)

# Table 6 of the published matrix: goodput of blocking and overlapped in its eight suites, and the
# gain that it prints for each.
BLOCKING = (7.5360, 8.3523, 12.0825, 8.4278, 7.5410, 11.8239, 12.3472, 13.6529)
OVERLAPPED = (7.8680, 8.6963, 12.5711, 8.7625, 7.8045, 12.1600, 12.6464, 13.8934)
GAINS = (4.4050, 4.1186, 4.0441, 3.9724, 3.4943, 2.8426, 2.4235, 1.7612)


def drawn(n: int, seed: int = 3) -> tuple[list[float], list[float]]:
    """Two samples of whole numbers, whose sums are exact in any order."""
    rng = np.random.default_rng(seed)
    return [float(v) for v in rng.integers(100, 900, n)], [
        float(v) for v in rng.integers(100, 900, n)
    ]


def scipys(samples: tuple[list[float], ...], statistic: Callable[..., Any]) -> tuple[float, float]:
    found = stats.bootstrap(
        tuple(map(np.array, samples)),
        statistic,
        paired=len(samples) > 1,
        n_resamples=RESAMPLES,
        method="BCa",
        rng=np.random.default_rng(SEED),
    ).confidence_interval
    return float(found.low), float(found.high)


@pytest.mark.parametrize("n", [3, 5, 8, 24])
def test_the_bootstrap_is_scipys_to_the_last_digits(n: int) -> None:
    a, b = drawn(n)
    mean, ratio = summary(a), paired(a, b)
    assert (mean.boot_low, mean.boot_high) == pytest.approx(scipys((a,), np.mean), rel=1e-12)
    expected = scipys((a, b), lambda x, y, axis=-1: x.mean(axis) / y.mean(axis) - 1)
    assert (ratio.ratio_low, ratio.ratio_high) == pytest.approx(expected, rel=1e-9)


def test_what_differs_in_rounding_alone_is_one_value() -> None:
    """0.1, 0.2 and 0.3 add up differently in another order: a resample that holds each once is
    neither above nor below the mean.
    """
    tenths, whole = summary([0.1, 0.2, 0.3, 0.7]), summary([1.0, 2.0, 3.0, 7.0])
    assert (tenths.boot_low, tenths.boot_high) == pytest.approx(
        (whole.boot_low / 10, whole.boot_high / 10), rel=1e-9
    )  # type: ignore[operator]


def test_there_is_no_bootstrap_of_two_values_and_none_of_equal_ones_has_a_width() -> None:
    assert summary([1.0, 2.0]).boot_low is None
    assert (summary([0.3] * 5).boot_low, summary([0.3] * 5).boot_high) == pytest.approx((0.3, 0.3))
    assert bca(lambda weights: np.full(len(weights), np.nan), 4) is None


@pytest.mark.parametrize("n", [2, 3, 8, 24])
def test_a_paired_difference_has_the_paired_t_interval(n: int) -> None:
    a, b = drawn(n, seed=n)
    found, expected = paired(a, b).difference, stats.ttest_rel(a, b).confidence_interval()
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.mean == pytest.approx(np.mean(a) - np.mean(b)) and found.sd == pytest.approx(
        np.std(np.array(a) - np.array(b), ddof=1)
    )


def test_the_published_gain_is_a_ratio_of_means_and_not_the_mean_of_its_table() -> None:
    found = paired(OVERLAPPED, BLOCKING)
    assert found.ratio_of_means is not None and found.mean_of_ratios is not None
    assert found.ratio_of_means == pytest.approx(0.032272, abs=2e-6)  # the table has four decimals
    assert (
        found.mean_of_ratios.mean
        == pytest.approx(0.033827, abs=2e-6)
        == pytest.approx(sum(GAINS) / 800, abs=2e-6)
    )
    assert (found.signs.positive, found.signs.negative, found.n) == (8, 0, 8)
    assert found.mean_of_ratios.low is not None and found.mean_of_ratios.low > 0.02


def test_a_mean_of_ratios_is_no_ratio_of_means() -> None:
    assert ratio_of_means([1.0, 9.0], [1.0, 3.0]) == 2.5
    both = paired([1.0, 9.0], [1.0, 3.0])
    assert (
        both.ratio_of_means == 1.5
        and both.mean_of_ratios is not None
        and both.mean_of_ratios.mean == 1.0
    )


def test_eight_of_eight_are_no_accident_and_three_of_three_may_be() -> None:
    eight, three = signs([0.1] * 8), signs([0.1] * 3)
    assert eight.p is not None and round(eight.p, 4) == 0.0078
    assert eight.low is not None and round(eight.low, 4) == 0.6306 and eight.high == 1.0
    assert three.p == 0.25 and three.low is not None and three.low < 0.5
    assert signs([1, -1, 0, 0]) == signs([0, 0, 2, -3]) and signs([1, -1, 0, 0]).ties == 2
    assert (signs([0.0, 0.0]).p, signs([0.0, 0.0]).low) == (None, None)


@pytest.mark.parametrize(
    ("k", "n"), [(0, 10), (3, 10), (5, 10), (10, 10), (1, 1), (400, 400), (17, 1000)]
)
def test_intervals_and_p_are_scipys(k: int, n: int) -> None:
    test = stats.binomtest(k, n)
    for found, method in ((wilson(k, n), "wilson"), (clopper_pearson(k, n), "exact")):
        expected = test.proportion_ci(method=method)  # type: ignore[arg-type]
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-10)
    found_p = signs([1.0] * k + [-1.0] * (n - k)).p
    # one pair is no test
    assert found_p is None if n == 1 else found_p == pytest.approx(test.pvalue)


def test_intervals_are_what_their_names_say() -> None:
    """0 of 10, as it was published under the wrong name."""
    assert (wilson(0, 10).method, round(wilson(0, 10).high, 3)) == ("Wilson", 0.278)
    assert (clopper_pearson(0, 10).method, round(clopper_pearson(0, 10).high, 3)) == (
        "Clopper-Pearson",
        0.308,
    )
    assert wilson(0, 10).low == clopper_pearson(0, 10).low == 0.0
    for interval in (wilson, clopper_pearson):
        for successes, n in ((3, 2), (-1, 2), (0, 0)):
            with pytest.raises(ValueError, match=f"{successes} of {n} is no proportion"):
                interval(successes, n)


@pytest.mark.parametrize("n", [2, 3, 24])
def test_the_interval_of_a_mean_is_students(n: int) -> None:
    values = drawn(n)[0]
    expected = stats.t.interval(0.95, n - 1, np.mean(values), stats.sem(values))
    found = summary(values)
    assert (found.low, found.high) == pytest.approx(expected)
    assert summary([5.0]).sd is None
    with pytest.raises(ValueError):
        summary([])


def test_no_ratio_where_the_base_is_nothing() -> None:
    """Stall against a run without checkpoints: the difference is told, a ratio is not."""
    none, some = paired([1.0, 2.0, 3.0], [0.0, 0.0, 0.0]), paired([1.0, 2.0, 3.0], [0.0, 1.0, 1.0])
    assert (none.ratio_of_means, none.ratio_low, none.mean_of_ratios) == (None, None, None)
    assert (some.ratio_of_means, some.ratio_low, some.mean_of_ratios) == (2.0, None, None)
    assert none.difference.mean == 2.0 and none.signs.positive == 3
    with pytest.raises(ValueError, match="2 values against 1"):
        paired([1.0, 2.0], [1.0])


def test_stall_saved_is_not_wall_saved() -> None:
    """The published aggregate: 10.5657 s of stall saved, 5.6902 s of wall: 53.9%."""
    blocking = [RunCosts(165.2386 + d, 18.4253 + d, 0.0, 18.3014, 32) for d in (-2.0, 0.0, 2.0)]
    overlapped = [RunCosts(159.5484 + d, 7.8596 + d, 0.0, 1.3993, 32) for d in (-2.0, 0.0, 2.0)]
    found = overlap(overlapped, blocking)
    assert found.stall_saved_s.mean == pytest.approx(
        10.5657
    ) and found.wall_saved_s.mean == pytest.approx(5.6902)
    assert found.efficiency is not None and f"{found.efficiency:.1%}" == "53.9%"
    assert found.efficiency_low == pytest.approx(found.efficiency) and found.pairs == 3
    assert overlap(blocking, overlapped).efficiency is None


def test_where_no_stall_is_saved_there_is_no_efficiency() -> None:
    """Nor an interval where a single pair saved none; and where nothing was submitted, a write
    costs nothing.
    """
    runs = [RunCosts(10.0 + d, 3.0 + d, 1.0, 2.0, 0) for d in (0.0, 1.0, 2.0)]
    alike = overlap(runs, runs)
    assert (
        alike.efficiency,
        alike.efficiency_low,
        alike.efficiency_high,
        alike.stall_saved_s.mean,
    ) == (None, None, None, 0.0)
    assert (
        alike.blocking.submitted,
        alike.blocking.write_s,
        alike.blocking.stall_s,
        alike.blocking.serialize_s,
    ) == (0, 0.0, 0.0, 0.0)
    saved = overlap(
        [RunCosts(9.0, 3.0, 0, 0, 1), RunCosts(8.0, 1.0, 0, 0, 1), RunCosts(6.0, 0.0, 0, 0, 1)],
        [RunCosts(10.0, 3.0, 0, 0, 1)] * 3,
    )
    assert saved.efficiency == pytest.approx(7 / 5) and (
        saved.efficiency_low,
        saved.efficiency_high,
    ) == (None, None)


def test_a_write_costs_what_all_submitted_writes_cost() -> None:
    """Three writes of 0.466 s seen and 29 not seen are no 1.4 s: each run's total goes over all
    that it submitted.
    """
    found = overlap(
        [RunCosts(1, 1, 0.5, 14.9, 32), RunCosts(1, 1, 0.5, 9.3, 20)],
        [RunCosts(2, 2, 0, 18.3, 32), RunCosts(2, 2, 0, 11.44, 20)],
    )
    assert (found.overlapped.submitted, found.blocking.submitted) == (52, 52)
    assert found.overlapped.write_s == pytest.approx(
        24.2 / 52
    ) and found.blocking.write_s == pytest.approx(29.74 / 52)
    assert found.overlapped.serialize_s == pytest.approx(
        1 / 52
    ) and found.overlapped.stall_s == pytest.approx(2 / 52)


@pytest.mark.parametrize("n", [1, 2, 10])
def test_a_prediction_is_students_for_the_mean_of_further_values(n: int) -> None:
    """Half of t * s * sqrt(1/n + 1/m), m values seen, on m - 1 degrees of freedom."""
    seen = [1.0, 2.0, 4.0, 9.0]
    half = stats.t.ppf(0.975, 3) * np.std(seen, ddof=1) * np.sqrt(1 / n + 1 / 4)
    assert prediction(summary(seen), n) == pytest.approx(half, rel=1e-12)
    with pytest.raises(ValueError, match="at least two values"):
        prediction(summary([1.0]), n)


def test_a_line_is_scipys() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=12)
    y = 2 * x + rng.normal(size=12)
    found, expected = line(list(x), list(y)), stats.linregress(x, y)
    assert found is not None and found.n == 12
    half = stats.t.ppf(0.975, 10) * expected.stderr
    wanted = (
        expected.slope,
        expected.intercept,
        expected.slope - half,
        expected.slope + half,
        -expected.intercept / expected.slope,
    )
    assert (found.slope, found.intercept, found.low, found.high, found.zero) == pytest.approx(
        wanted, rel=1e-12
    )


@pytest.mark.parametrize(("x", "y"), [([1.0, 2.0], [1.0, 2.0]), ([1.0, 1.0, 1.0], [1.0, 2.0, 3.0])])
def test_no_line_through_two_points_or_one_place(x: list[float], y: list[float]) -> None:
    assert line(x, y) is None


def test_a_level_line_crosses_zero_nowhere() -> None:
    for height in (0.0, 2.0):
        level = line([1.0, 2.0, 3.0], [height] * 3)
        assert level is not None and (level.slope, level.intercept, level.zero) == (
            0.0,
            height,
            None,
        )
