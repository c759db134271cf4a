"""Compares two arms over pairs of runs of one suite and seed, and the noise between equal runs.
`metrics` does the arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

from ecrl_cli.metrics.overlap import Overlap, RunCosts, overlap
from ecrl_cli.metrics.statistics import Paired, Summary, paired, prediction, summary
from ecrl_cli.report.formats import identical
from ecrl_cli.report.model.arms import MEASURES, Arm, base_of, partners
from ecrl_cli.report.model.comparison import ALL, Comparison
from ecrl_cli.report.model.run_record import Metrics, Run
from ecrl_cli.report.model.suite_gates import environment_changes

REPEATED_REFERENCE, EQUAL_RUNS = "ref2 against ref", "equal runs of different suites"
NO_FLOOR = "no A/A arm: add variant=...,ref2"
ARM_PAIRS = (
    ("ovl", "blk"),
    ("blk", "ref"),
    ("ovl", "ref"),
    ("ref", "clean"),
    ("blk", "clean"),
    ("ovl", "clean"),
    ("ref2", "ref"),
)
_BASES = ("clean", "ref", "blk", "ovl")  # for an arm with another name
_DIGESTS = ("parameters_digest", "buffers_digest", "optimizer_digest")


@dataclass(frozen=True)
class NoiseFloor:
    """Differences between runs of the same configuration. `source`: REPEATED_REFERENCE, or
    without such an arm EQUAL_RUNS (further apart in time).

    `relative`: of a / b - 1 over the `pairs`; `largest`: of the larger over the smaller - 1.
    `alike`, `differing`: how many pairs ended in bit-identical states, and how many did not.
    """

    source: str
    pairs: int
    relative: Summary
    largest: float
    alike: int
    differing: int

    def of_mean(self, pairs: int) -> float:
        """How far the mean over `pairs` pairs of equal runs may be from zero (95%): what the mean
        of an effect has to exceed.

        |mean| + t(n - 1) * sd * sqrt(1/pairs + 1/n) of the n pairs seen, the prediction interval
        for a future mean. The largest difference seen is not used, because it grows with the number
        of pairs, except where only one pair was seen.
        """
        return (
            abs(self.relative.mean) + prediction(self.relative, pairs)
            if self.relative.sd is not None
            else self.largest
        )


@dataclass(frozen=True)
class Contrast:
    """`arm` compared with `base` by one measure, over pairs of runs.

    `scope`: the suite of the pairs, ALL, or empty if not needed; `suites`: all suites that have a
    pair. `floor`: the noise of those suites; None if nothing ran twice. `published`: the same pairs
    on the published clock, for goodput.
    """

    arm: str
    base: str
    measure: str
    pair: Paired
    floor: NoiseFloor | None
    scope: str = ""
    suites: tuple[str, ...] = ()
    seeds: int = 0
    scale: str = ""
    published: Paired | None = None

    @property
    def title(self) -> str:
        return f"{self.arm} against {self.base}"

    @property
    def is_noise(self) -> bool:
        """Whether it is of equal runs: the noise floor, and no effect."""
        return same_runs(self.arm, self.base)

    @property
    def effect(self) -> float:
        """The mean of ratios, to which the interval belongs, minus 1; 0 if the measure has no
        ratio.
        """
        return self.pair.mean_of_ratios.mean if self.pair.mean_of_ratios else 0.0

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of the effect by Student's t; None for a single pair."""
        found = self.pair.mean_of_ratios
        return (
            None
            if found is None or found.low is None or found.high is None
            else (found.low, found.high)
        )

    @property
    def alike(self) -> bool:
        """Whether the ratio is the same in all pairs: an interval without width, which tells
        nothing of another pair.
        """
        return self.interval is not None and identical(*self.interval)

    @property
    def noise(self) -> float | None:
        """How far the mean over as many pairs of equal runs may be from zero; None without a
        floor.
        """
        return self.floor.of_mean(self.pair.n) if self.floor else None

    @cached_property
    def above_floor(self) -> bool | None:
        """Whether the whole interval is outside the noise floor. None without a floor or a
        ratio.
        """
        if self.noise is None or self.pair.mean_of_ratios is None:
            return None
        return self.interval is not None and (
            self.interval[0] > self.noise or self.interval[1] < -self.noise
        )

    @property
    def against_floor(self) -> str:
        """`above_floor` in words; empty if the measure has no ratio."""
        if self.pair.mean_of_ratios is None:
            return ""
        if self.floor is None:
            return NO_FLOOR
        return (
            "one pair, no interval"
            if self.pair.n < 2
            else f"{'above' if self.above_floor else 'within'} the floor"
        )

    @property
    def distinguishable(self) -> bool:
        """Whether the effect may be claimed: its interval excludes zero, and is outside the noise
        floor if there is one.
        """
        return (
            self.interval is not None
            and not self.interval[0] <= 0 <= self.interval[1]
            and self.above_floor is not False
        )

    @property
    def sign(self) -> int:
        """1: more, -1: less, 0: not statistically distinguishable."""
        return (1 if self.effect > 0 else -1) if self.distinguishable else 0


def same_runs(arm: str, base: str) -> bool:
    """Whether two labels are of a reference and its repetition."""
    return arm.startswith("ref2") and base.startswith("ref")


def contrast(
    comparison: Comparison,
    arm: str,
    base: str,
    measure: str = "goodput",
    suites: Sequence[str] | None = None,
) -> Contrast | None:
    """The contrast of two arms (labels) over the pairs of `suites` (None: all) that passed; None if
    no pair has the measure.
    """
    found = pairs(comparison, arm, base, suites)
    pair = paired_runs(found, measure)
    if pair is None:
        return None
    members = tuple(dict.fromkeys(run.suite for run, _ in found))
    published = paired_runs(found, "goodput_published_clock") if measure == "goodput" else None
    seeds, floor = len({run.seed for run, _ in found}), noise_floor(comparison, measure, members)
    scale = comparison.scale(members)
    return Contrast(
        arm,
        base,
        measure,
        pair,
        floor,
        suites=members,
        seeds=seeds,
        scale=scale,
        published=published,
    )


def contrasts(
    comparison: Comparison,
    scope: str,
    suites: Sequence[str],
    measures: Iterable[str] = ("goodput",),
) -> list[Contrast]:
    """Every comparison of arms that has a pair in the suites of `scope`, measure by measure."""
    found = [
        contrast(comparison, *labels, measure, suites)
        for labels in compared_arms(comparison, suites)
        for measure in measures
    ]
    return [replace(each, scope=scope) for each in found if each]


def by_scope(comparison: Comparison) -> list[tuple[Contrast, ...]]:
    """The contrasts of goodput, arm by arm: over all suites first, then suite by suite. ref2
    against ref is the noise floor, not a contrast.
    """
    scopes = sorted(comparison.scopes, key=lambda scope: scope[0] != ALL)
    found: dict[tuple[str, str], list[Contrast]] = {
        labels: [] for labels in compared_arms(comparison) if not same_runs(*labels)
    }
    for scope, suites in scopes:
        for each in contrasts(comparison, scope, suites):
            if (each.arm, each.base) in found:
                found[each.arm, each.base].append(each)
    return [tuple(members) for members in found.values() if members]


def overlaps(
    comparison: Comparison, suites: Sequence[str] | None = None
) -> list[tuple[str, str, Overlap]]:
    """Every overlapped arm and its blocking one, by label, and what overlapping saved over the
    pairs of `suites` (None: all).
    """
    labels = {arm.label: arm.variant for arm in comparison.arms}
    wanted = [(a, b) for a in labels if labels[a] == "ovl" for b in labels if labels[b] == "blk"]
    found = [(a, b, pairs(comparison, a, b, suites)) for a, b in wanted]
    return [
        (
            a,
            b,
            overlap(
                [_costs(x.metrics) for x, _ in runs if x.metrics],
                [_costs(y.metrics) for _, y in runs if y.metrics],
            ),
        )
        for a, b, runs in found
        if runs
    ]


def _costs(m: Metrics) -> RunCosts:
    saves = m.checkpoints
    return RunCosts(
        m.wall_s, saves["stall_s"], saves["serialize_s"], saves["write_s"], saves["submitted"]
    )


def versus(
    comparison: Comparison,
    arm_label: str,
    base_label: str,
    measure: str,
    suites: Sequence[str] | None = None,
) -> Paired | None:
    """One arm compared with another over the pairs of `suites` (None: all) that passed their gates;
    None if no pair has the measure.
    """
    return paired_runs(pairs(comparison, arm_label, base_label, suites), measure)


def pairs(
    comparison: Comparison, arm_label: str, base_label: str, suites: Sequence[str] | None = None
) -> list[tuple[Run, Run]]:
    """Runs of one suite, seed and reference_id, of the arm and of its base; suites that failed a
    gate give none.
    """
    chosen = [suite for suite in comparison.passed if suites is None or suite in suites]
    key = ("pairs", arm_label, base_label, *chosen)
    if key not in comparison.memo:
        comparison.memo[key] = [
            pair
            for suite in chosen
            for pair in _of_suite(comparison.of(suite), arm_label, base_label)
        ]
    found: list[tuple[Run, Run]] = comparison.memo[key]
    return found


def compared_arms(
    comparison: Comparison, suites: Sequence[str] | None = None
) -> list[tuple[str, str]]:
    """The comparisons that have a pair, as labels: ARM_PAIRS first, then arms with other names
    against each base.
    """
    arms = [arm for arm in comparison.arms if suites is None or arm.suite in suites]
    labels = {
        label: next(arm.variant for arm in arms if arm.label == label)
        for label in dict.fromkeys(arm.label for arm in arms)
    }
    known = {name for both in ARM_PAIRS for name in both}
    wanted = [
        *ARM_PAIRS,
        *(
            (name, base)
            for name in dict.fromkeys(labels.values())
            if name not in known
            for base in _BASES
        ),
    ]
    found = [
        (a, b)
        for variants in wanted
        for a in labels
        if labels[a] == variants[0]
        for b in labels
        if labels[b] == variants[1]
    ]
    return [both for both in found if pairs(comparison, *both, suites)]


def noise_floor(
    comparison: Comparison, measure: str, suites: Sequence[str] | None = None
) -> NoiseFloor | None:
    """The noise floor of `measure`: of the A/A arm if there is one, else of equal runs in different
    suites; None if nothing ran twice.
    """
    return next(iter(floors(comparison, measure, suites)), None)


def floors(
    comparison: Comparison, measure: str, suites: Sequence[str] | None = None
) -> list[NoiseFloor]:
    """Every floor of `measure`, by source: REPEATED_REFERENCE first, then EQUAL_RUNS."""
    found = [
        _floor(source, repeated, measure)
        for source, repeated in _repeated(comparison, suites).items()
    ]
    return [floor for floor in found if floor]


def _of_suite(arms: Sequence[Arm], arm_label: str, base_label: str) -> list[tuple[Run, Run]]:
    arm = next((arm for arm in arms if arm.label == arm_label), None)
    base = base_of(arm, arms, base_label) if arm else None
    return partners(arm, base) if arm and base else []


def _repeated(
    comparison: Comparison, suites: Sequence[str] | None
) -> dict[str, list[tuple[Run, Run]]]:
    """By source, the pairs of equal runs, with at least one run of each pair in `suites`."""
    wanted = [suite for suite in comparison.passed if suites is None or suite in suites]
    key = ("repeated", *wanted)
    if key not in comparison.memo:
        comparison.memo[key] = _repeated_in(comparison, wanted)
    found: dict[str, list[tuple[Run, Run]]] = comparison.memo[key]
    return found


def _repeated_in(comparison: Comparison, wanted: Sequence[str]) -> dict[str, list[tuple[Run, Run]]]:
    own = {suite: [arm for arm in comparison.of(suite) if not arm.is_reference] for suite in wanted}
    again = [
        pair
        for arms in own.values()
        for arm in arms
        if arm.variant == "ref2"
        for pair in _of_suite(arms, arm.label, "ref")
    ]
    by_id: dict[str, list[Run]] = {}
    for run in comparison.counted:
        if run.metrics and run.suite in comparison.passed:
            by_id.setdefault(run.metrics.run_id, []).append(run)
    twice = [
        (a, b)
        for runs in by_id.values()
        for a, b in combinations(runs, 2)
        if a.suite != b.suite and {a.suite, b.suite} & set(wanted)
    ]
    same = [(b, a) for a, b in twice if not environment_changes(a, b)]
    return {REPEATED_REFERENCE: again, EQUAL_RUNS: same}


def _floor(source: str, found: Sequence[tuple[Run, Run]], measure: str) -> NoiseFloor | None:
    values = [pair for pair in _values(found, measure) if min(pair) > 0]
    if not values:
        return None
    relative = [a / b - 1 for a, b in values]
    alike = sum(_ended_alike(a, b) for a, b in found)
    return NoiseFloor(
        source,
        len(values),
        summary(relative),
        max(max(pair) / min(pair) - 1 for pair in values),
        alike,
        len(found) - alike,
    )


def _ended_alike(a: Run, b: Run) -> bool:
    ours, theirs = ((run.metrics.final or {}) if run.metrics else {} for run in (a, b))
    return all(ours.get(key) == theirs.get(key) for key in _DIGESTS)


def _values(found: Iterable[tuple[Run, Run]], measure: str) -> list[tuple[float, float]]:
    """The measure of both runs of each pair; pairs without it are left out."""
    read = MEASURES[measure]
    both = [(read(a.metrics), read(b.metrics)) for a, b in found if a.metrics and b.metrics]
    return [(x, y) for x, y in both if x is not None and y is not None]


def paired_runs(found: Iterable[tuple[Run, Run]], measure: str) -> Paired | None:
    """The statistics of pairs of runs; None if no pair has the measure."""
    values = _values(found, measure)
    return paired([a for a, _ in values], [b for _, b in values]) if values else None
