"""The claims that may be made about the arms: a sentence each in plain words, and the statistics
behind it.

No winner unless statistically distinguishable.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ecrl_cli.metrics.statistics import Summary, line
from ecrl_cli.report.formats import (
    at_scale,
    change,
    duration,
    identical,
    listed,
    plural,
    share,
    size,
    spelled,
)
from ecrl_cli.report.model.comparison import ALL, Comparison
from ecrl_cli.report.model.contrast import (
    NO_FLOOR,
    REPEATED_REFERENCE,
    Contrast,
    compared_arms,
    contrast,
    floors,
    overlaps,
    pairs,
)
from ecrl_cli.report.model.run_record import Metrics
from ecrl_cli.report.model.spans import amounts, is_range, span

T = TypeVar("T")
MANY = 3  # settings: more are summarized in one sentence
_SIZES = 3  # of checkpoints: fewer show no trend, nor do sizes that lie within a factor of two
INDISTINGUISHABLE = "not statistically distinguishable"


@dataclass(frozen=True)
class Statement:
    """A sentence in plain words; `statistics`: the numbers that it rests on, which a page folds
    away, or empty.
    """

    text: str
    statistics: str = ""

    @property
    def whole(self) -> str:
        return f"{self.text} {self.statistics}".strip()


# The placeholders are the keys of `fields`.
NUMBERS = (
    "{effect} (mean of ratios, {interval}, {spread}; ratio of means {ratio};"
    " {signs}{published}){scale}; {noise}."
)
GOODPUT = "Goodput of {arm} against {base}{where}: " + NUMBERS
STRATEGIES = {
    1: "{arm} beats {base}{where}: {effect} goodput, seen in {seen}.",
    -1: "{base} beats {arm}{where}: {arm} has {effect} goodput, seen in {seen}.",
    0: "{arm} and {base}{where}: no difference that {seen} could show.",
}
PRICES = {
    1: "{what} add goodput{where}: {effect} in {arm} against {base}, seen in {seen}.",
    -1: "{what} cost{where} {size} of goodput ({arm} against {base}, seen in {seen}).",
    0: "{what}{where}: no cost that {seen} could show ({arm} against {base}).",
}
COUNTED = (
    "Of {all} {what} overlapped wins in {ahead}, blocking in {behind}; {open} {are} "
    + INDISTINGUISHABLE
)
RANGE = "Mean ratios of goodput from {low} ({lowest}) to {high} ({highest}){scale}."
RESTART = "A restart{where} takes {mean} on average."
RESTARTS = "Mean over {count}{interval}{scale}."
SAVED = "Of {stall} of stall that {arm} saves against {base} in a run{where}, {back}."
OVERLAP = "Stall saved {stall}, wall time saved {wall}{efficiency}{scale}."
NOISE = (
    "{who} differ by up to {largest} in goodput ({pairs}, {alike} of {all} ended bit for bit alike)"
)
# Of the gain of overlapping against the size of what is saved.
GROWTH = {
    1: (
        "The gain of {arm} over {base} grows with the checkpoint: by {slope} for each doubling of"
        " its size, seen in {seen}{crossing}."
    ),
    -1: (
        "The gain of {arm} over {base} falls with the checkpoint: by {slope} for each doubling of"
        " its size, seen in {seen}{crossing}."
    ),
    0: (
        "Whether the gain of {arm} over {base} changes with the size of the checkpoint: no change"
        " that {seen} could show."
    ),
}
SLOPE = (
    "Slope {points} points per doubling (95% {low} to {high}), {smallest} to {largest}{scale};"
    " larger models also take longer steps."
)
# each takes a verb in the plural
PRICED = {
    "ref": "Checkpoints alone",
    "blk": "Failures alone",
    "ovl": "Failures and overlapping together",
}
SAVED_ONCE = "Failures and checkpoints together"  # against a reference, which saves only at its end


def fields(found: Contrast) -> dict[str, str]:
    """A contrast of goodput in words, for the templates."""
    published = found.published.mean_of_ratios if found.published else None
    return {
        "arm": found.arm,
        "base": found.base,
        "where": f" in {found.scope}" if found.scope else "",
        "effect": change(found.effect),
        "size": share(abs(found.effect)),
        "seen": (
            f"{spelled(found.pair.n)} {plural(found.pair.n, 'pair').partition(' ')[2]}{over(found)}"
        ),
        "interval": interval_words(found),
        "spread": (
            f"{plural(found.pair.n, 'pair')} of {plural(len(found.suites), 'suite')} and"
            f" {plural(found.seeds, 'seed')}"
        ),
        "ratio": change(found.pair.ratio_of_means),
        "signs": f"{found.pair.signs.positive} up, {found.pair.signs.negative} down",
        "published": f"; on the published clock {change(published.mean)}" if published else "",
        "scale": at_scale(found.scale),
        "noise": noise_words(found),
    }


def over(found: Contrast) -> str:
    """Note that the pairs are of several suites, which a single number hides."""
    return f" of {spelled(len(found.suites))} suites together" if len(found.suites) > 1 else ""


def interval_words(found: Contrast) -> str:
    """The interval of the effect; in place of one without width, that all pairs had the same
    ratio.
    """
    if found.interval is None:
        return "no interval"
    if found.alike:
        return "identical in all pairs"
    ratios = found.pair.mean_of_ratios
    low, high = span(ratios) or found.interval
    return f"{'range' if found.pair.n == 2 else '95%'} {change(low)} to {change(high)}"


def noise_words(found: Contrast) -> str:
    """How the effect compares with the noise, and why it is not distinguishable if it is not."""
    floor = f"the noise floor of {share(found.noise)}" if found.noise is not None else ""
    if found.distinguishable:
        return f"above {floor}" if floor else NO_FLOOR
    if found.interval is None:
        return "a single pair has no interval"
    if found.interval[0] <= 0 <= found.interval[1]:
        return "the interval includes zero"
    return f"the interval reaches into {floor}" if floor else NO_FLOOR


def claims(comparison: Comparison, arm: str, base: str) -> list[Contrast]:
    """The contrasts of the variant `arm` with the variant `base`: one, or one per setting that
    distinguishes arms. One per suite if suites are not pooled, or if one has the opposite sign of
    another or of the pooled effect: no winner may hide a crossover.
    """
    variants = {a.label: a.variant for a in comparison.arms}
    wanted = [
        (a, b) for a, b in compared_arms(comparison) if (variants[a], variants[b]) == (arm, base)
    ]
    return [found for labels in wanted for found in _claims(comparison, *labels)]


def _claims(comparison: Comparison, arm: str, base: str) -> list[Contrast]:
    whole = contrast(comparison, arm, base)
    if whole is None:
        return []
    each = [
        replace(one, scope=suite)
        for suite in whole.suites
        if (one := contrast(comparison, arm, base, suites=[suite]))
    ]
    if len(each) > 1 and comparison.why_not_pooled:
        return each
    return each if {1, -1} <= {claim.sign for claim in (whole, *each)} else [whole]


def repeated(comparison: Comparison) -> bool:
    """Whether any comparison has more than one pair, and thus an interval."""
    return any(len(pairs(comparison, arm, base)) > 1 for arm, base in compared_arms(comparison))


def winner(comparison: Comparison) -> str:
    """The winning strategy, for a headline; empty if the two were not compared over several
    pairs.
    """
    found = [claim for claim in claims(comparison, "ovl", "blk") if claim.pair.n > 1]
    if not found:
        return ""
    if len(found) > 1:
        return _counted(found)
    if not found[0].distinguishable:
        return f"Overlapped and blocking are {INDISTINGUISHABLE}"
    first, second = ("Overlapped", "blocking") if found[0].sign > 0 else ("Blocking", "overlapped")
    return f"{first} beats {second}: goodput of ovl is {change(found[0].effect)} against blk"


def _counted(found: Sequence[Contrast]) -> str:
    ahead, behind = (sum(claim.sign == sign for claim in found) for sign in (1, -1))
    left = len(found) - ahead - behind
    what = "suites" if found[0].scope else "settings"
    return COUNTED.format(
        all=len(found),
        what=what,
        ahead=ahead,
        behind=behind,
        open=left,
        are="is" if left == 1 else "are",
    )


def sentences(comparison: Comparison) -> list[Statement]:
    """The claims: strategies, cost of checkpoints, cost of failures, restarts, overlap."""
    return [
        *_strategies(comparison),
        *_checkpoints(comparison),
        *(
            _price(claim, _priced(comparison, arm))
            for arm in ("blk", "ovl")
            for claim in _few(claims(comparison, arm, "ref"))
        ),
        *_restarts(comparison),
        *_efficiency(comparison),
        *_growth(comparison),
    ]


def _strategies(comparison: Comparison) -> list[Statement]:
    found = claims(comparison, "ovl", "blk")
    if len(found) > MANY:
        most, least = (
            max(found, key=lambda claim: claim.effect),
            min(found, key=lambda claim: claim.effect),
        )
        ends = {
            "low": change(least.effect),
            "high": change(most.effect),
            "scale": at_scale(most.scale),
        }
        names = {
            name: f"{claim.arm}{fields(claim)['where']}"
            for name, claim in (("lowest", least), ("highest", most))
        }
        return [Statement(f"{_counted(found)}.", RANGE.format(**ends, **names))]
    return [
        Statement(STRATEGIES[claim.sign].format(**fields(claim)), GOODPUT.format(**fields(claim)))
        for claim in found
    ]


def _checkpoints(comparison: Comparison) -> list[Statement]:
    found = claims(comparison, "ref", "clean")
    if not found and any(arm.variant == "ref" for arm in comparison.without_references.arms):
        return [
            Statement(
                "What checkpoints cost by themselves was not measured: ref saves too, in blocking"
                " mode; add variant=clean,..."
            )
        ]
    return [_price(claim, PRICED["ref"]) for claim in _few(found)]


def _few(found: Sequence[T]) -> Sequence[T]:
    return found if len(found) <= MANY else ()


def _priced(comparison: Comparison, variant: str) -> str:
    """ref saves in blocking mode: blk compared with it is the cost of failures, ovl what remains of
    that with overlapping. A reference saves once.
    """
    return (
        SAVED_ONCE
        if all(arm.is_reference for arm in comparison.arms if arm.variant == "ref")
        else PRICED[variant]
    )


def _price(claim: Contrast, what: str) -> Statement:
    return Statement(
        PRICES[claim.sign].format(what=what, **fields(claim)), GOODPUT.format(**fields(claim))
    )


def _restarts(comparison: Comparison) -> list[Statement]:
    costs = []
    for scope, suites in _few(comparison.overall):
        totals = [
            restart.total_s
            for suite in suites
            for arm in comparison.of(suite)
            for restart in arm.restarts
        ]
        if totals:
            each, where = amounts(totals), _where(comparison, scope)
            interval = f", {_between(each)}" if each.low is not None else ""
            behind = RESTARTS.format(
                count=plural(each.n, "restart"),
                interval=interval,
                scale=at_scale(comparison.scale(suites)),
            )
            costs.append(Statement(RESTART.format(where=where, mean=duration(each.mean)), behind))
    return costs


def _where(comparison: Comparison, scope: str) -> str:
    """The suite of a sentence, if there is one sentence per suite."""
    return f" in {scope}" if scope != ALL and len(comparison.overall) > 1 else ""


def _efficiency(comparison: Comparison) -> list[Statement]:
    """How much of the saved stall became saved wall time; no claim if the latter may be zero."""
    found = [
        (_where(comparison, scope), suites, *each)
        for scope, suites in comparison.overall
        for each in overlaps(comparison, suites)
    ]
    savings = []
    for where, suites, arm, base, saved in _few(found):
        if saved.pairs > 1:
            back, efficiency = f"{duration(saved.wall_saved_s.mean)} come back as wall time", ""
            if not (saved.wall_saved_s.low or 0.0) > 0 or saved.efficiency is None:
                back = (
                    f"nothing comes back as wall time that {spelled(saved.pairs)} pairs could show"
                )
            elif saved.efficiency_low is not None:
                efficiency = (
                    f" ({share(saved.efficiency)}, BCa {share(saved.efficiency_low)} to"
                    f" {share(saved.efficiency_high)})"
                )
            text = SAVED.format(
                stall=duration(saved.stall_saved_s.mean), arm=arm, base=base, where=where, back=back
            )
            stall, wall = _seconds(saved.stall_saved_s), _seconds(saved.wall_saved_s)
            savings.append(
                Statement(
                    text,
                    OVERLAP.format(
                        stall=stall,
                        wall=wall,
                        efficiency=efficiency,
                        scale=at_scale(comparison.scale(suites)),
                    ),
                )
            )
    return savings


def _growth(comparison: Comparison) -> list[Statement]:
    """Whether overlapping pays more where more is saved: a line through the pairs' gains over the
    size of a checkpoint, of sweeps over several sizes.

    Judged by the slope's interval: the wider of that of the pairs and that of the mean gains at
    each size, because the pairs of one network are not independent observations of what a size
    does. Where the line crosses zero within the sizes at hand, it says at which one: who wins
    depends on the size there.
    """
    labels = {arm.label: arm.variant for arm in comparison.arms}
    told = []
    for arm, base in (
        (a, b) for a in labels if labels[a] == "ovl" for b in labels if labels[b] == "blk"
    ):
        points = [
            (_saved(b.metrics), a.metrics.goodput / b.metrics.goodput - 1)
            for a, b in pairs(comparison, arm, base)
            if a.metrics and b.metrics and b.metrics.goodput > 0 and _saved(b.metrics)
        ]
        sizes = sorted({saved for saved, _ in points})
        means = [
            statistics.fmean(gain for saved, gain in points if saved == each) for each in sizes
        ]
        if len(sizes) >= _SIZES and sizes[-1] >= 2 * sizes[0]:
            of_pairs = line([math.log2(saved) for saved, _ in points], [gain for _, gain in points])
            of_sizes = line(list(map(math.log2, sizes)), means)
            assert of_pairs and of_sizes, "three sizes and more"
            found = max(of_pairs, of_sizes, key=lambda line: line.high - line.low)
            zero = found.zero
            inside = zero is not None and math.log2(sizes[0]) < zero < math.log2(sizes[-1])
            sign = 1 if found.low > 0 else -1 if found.high < 0 else 0
            words = {
                "arm": arm,
                "base": base,
                "slope": f"{abs(100 * found.slope):.2g} percentage points",
                "seen": f"{plural(len(points), 'pair')} at {plural(len(sizes), 'size')}",
                "crossing": (
                    f"; it crosses zero at about {size(2**zero)}"
                    if inside and zero is not None
                    else ""
                ),
            }
            low, high, slope = (
                f"{100 * value:+.2g}" for value in (found.low, found.high, found.slope)
            )
            ends = {
                "smallest": size(sizes[0]),
                "largest": size(sizes[-1]),
                "scale": at_scale(comparison.scale(comparison.passed)),
            }
            told.append(
                Statement(
                    GROWTH[sign].format(**words),
                    SLOPE.format(points=slope, low=low, high=high, **ends),
                )
            )
    return told


def _saved(metrics: Metrics) -> float:
    """Bytes of a checkpoint, to two digits: those of one model differ by a few; 0 if there is
    none.
    """
    committed = metrics.checkpoints["committed"]
    return float(f"{metrics.checkpoints['bytes'] / committed:.2g}") if committed else 0.0


def _seconds(found: Summary) -> str:
    """A mean of seconds with its interval by Student's t."""
    return (
        f"{duration(found.mean)} ({_between(found)})"
        if found.low is not None
        else duration(found.mean)
    )


def _between(found: Summary) -> str:
    low, high = span(found) or (found.mean, found.mean)
    words = f"{'range' if is_range(found) else '95%'} {duration(low)} to {duration(high)}"
    return "all identical" if identical(low, high) else words


def noise(comparison: Comparison) -> Statement | None:
    """How far runs of one configuration differ, and whether they ended in the same state; None
    where nothing was repeated at all.
    """
    found = floors(comparison, "goodput")
    if not found:
        missing = "How far equal runs lie apart here was not measured: add variant=...,ref2."
        return Statement(missing) if repeated(comparison) else None
    ranges = [
        NOISE.format(
            who="ref2 and ref"
            if floor.source == REPEATED_REFERENCE
            else "equal runs of different suites",
            largest=share(floor.largest),
            pairs=plural(floor.pairs, "pair"),
            alike=floor.alike,
            all=floor.alike + floor.differing,
        )
        for floor in found
    ]
    first = found[0]
    if first.pairs == 1:
        text = (
            f"The one pair of equal runs lies {share(first.largest)} apart: one observation of the"
            " noise."
        )
    else:
        mean = (
            f"a mean over {plural(first.pairs, 'pair')} means nothing below"
            f" {share(first.of_mean(first.pairs))}"
        )
        text = (
            f"Equal runs lie up to {share(first.largest)} apart here: one pair means nothing below"
            f" that, {mean}."
        )
    return Statement(
        text, f"The noise floor: {listed(ranges)}{at_scale(comparison.scale(comparison.passed))}."
    )
