"""The picture of the first screen: the effects with their intervals, or what happened in some runs
on one time axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ecrl_cli.report.formats import change, plural, share
from ecrl_cli.report.model.comparison import Comparison, first_seed
from ecrl_cli.report.model.contrast import Contrast, by_scope
from ecrl_cli.report.model.effects import effects, swept
from ecrl_cli.report.model.run_record import Run
from ecrl_cli.report.model.spans import span

MOST_EFFECTS, MOST_LANES = 9, 5
APART = 20  # percent of the width: an end of the scale nearer to zero has no label of its own


@dataclass(frozen=True)
class EffectRow:
    """An effect on the scale of the picture. `at`, `low`, `width`: the mean and its interval,
    `floor`, `floor_width`: the noise floor, in percent of the picture's width from its left edge;
    None where there is none. `words`: the tooltip.
    """

    title: str
    axis: str
    value: str
    at: float
    low: float | None
    width: float
    floor: float | None
    floor_width: float
    decided: bool
    words: str


@dataclass(frozen=True)
class Opening:
    """`rows`: effects, `zero` where no effect lies; or `runs` on one time axis. `more`: how many
    effects are further down the page.
    """

    rows: tuple[EffectRow, ...] = ()
    runs: tuple[Run, ...] = ()
    more: int = 0
    left: str = ""
    right: str = ""
    zero: float = 50.0


def opening(comparison: Comparison) -> Opening:
    """The picture to show first: effects that have an interval, else runs that failed and the arms
    of the first suite.
    """
    axes = [(effect.axis.name, effect.whole) for effect in swept(effects(comparison))]
    arms = [
        ("", each)
        for members in by_scope(comparison)
        for each in (members[:1] if comparison.pooled_suites else members)
    ]
    found = [
        (axis, each)
        for axis, each in (*axes, *arms)
        if each.pair.n > 1 and each.pair.mean_of_ratios
    ]
    if found and not any(run.failing for run in comparison.runs):
        return _of_effects(
            found[:MOST_EFFECTS],
            len(found) - MOST_EFFECTS,
            several=len(comparison.passed) > 1 and not comparison.pooled_suites,
        )
    failing = [run for run in comparison.runs if run.failing and run.view and run.view.wall_s > 0]
    first = next(iter(first_seed(comparison).values()), []) if comparison.arms else []
    runs = [
        *failing[:2],
        *(run for run in first if run.view and run.view.wall_s > 0 and run not in failing),
    ]
    return Opening(runs=tuple(runs[:MOST_LANES]))


def _of_effects(found: Sequence[tuple[str, Contrast]], more: int, *, several: bool) -> Opening:
    spans = [
        span(each.pair.mean_of_ratios) or (each.effect, each.effect)
        for _, each in found
        if each.pair.mean_of_ratios
    ]
    low, high = min(0.0, *(low for low, _ in spans)), max(0.0, *(high for _, high in spans))
    margin = 0.05 * (high - low) or 0.01
    low, high = low - margin, high + margin

    def place(value: float) -> float:
        return round(100 * (min(max(value, low), high) - low) / (high - low), 2)

    rows = []
    for (axis, each), (start, end) in zip(found, spans, strict=True):
        noise = each.noise
        floor = (place(-noise), place(noise)) if noise is not None else None
        where = f", {each.scope}" if several and not axis and each.scope else ""
        beside = f"; {each.against_floor} of {share(noise)}" if noise is not None else ""
        rows.append(
            EffectRow(
                f"{each.title}{where}",
                axis,
                change(each.effect),
                place(each.effect),
                place(start),
                round(place(end) - place(start), 2),
                floor[0] if floor else None,
                round(floor[1] - floor[0], 2) if floor else 0.0,
                each.distinguishable,
                f"{change(each.effect)} [{change(start)} to {change(end)}],"
                f" {plural(each.pair.n, 'pair')}{beside}",
            )
        )
    zero = place(0.0)
    left, right = (
        change(end) if abs(place(end) - zero) > APART else ""
        for end in (low + margin, high - margin)
    )
    return Opening(tuple(rows), (), max(0, more), left, right, zero)
