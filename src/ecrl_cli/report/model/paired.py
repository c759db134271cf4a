"""Which runs stand against which: pairs by suite and seed, pooled over suites, and the noise between runs that are the same. metrics counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from ecrl_cli.metrics.statistics import Paired, Summary, paired, prediction, summary
from ecrl_cli.report.model.arms import MEASURES, Arm, base_of, partners
from ecrl_cli.report.model.comparison import Comparison
from ecrl_cli.report.model.run_record import Run
from ecrl_cli.report.model.suite_gates import changed

AGAIN, SAME = "ref2 against ref", "equal runs of different suites"
NO_FLOOR = "no A/A arm: add variant=...,ref2"
CONTRASTS = (("ovl", "blk"), ("blk", "ref"), ("ovl", "ref"), ("ref", "clean"), ("blk", "clean"), ("ovl", "clean"), ("ref2", "ref"))
_BASES = ("clean", "ref", "blk", "ovl")  # for an arm of another name
_DIGESTS = ("parameters_digest", "buffers_digest", "optimizer_digest")


@dataclass(frozen=True)
class NoiseFloor:
    """What the same configuration, run twice, shows. `source`: AGAIN, or where there is no such arm SAME (further apart in time).

    `relative`: of a / b - 1 over the `pairs`; `largest`: of the larger over the smaller - 1, whichever came first. `alike`, `differing`: how
    many pairs ended bit for bit in the same state, how many did not.
    """

    source: str
    pairs: int
    relative: Summary
    largest: float
    alike: int
    differing: int

    def of_mean(self, pairs: int) -> float:
        """How far the mean over so many pairs of equal runs may lie from zero (95%): what the mean of an effect has to exceed.

        |mean| + t(n - 1) * sd * sqrt(1/pairs + 1/n) of the n pairs seen, the prediction interval for a mean to come. The largest difference
        seen would grow with every pair that is looked at. It stands in where one pair alone was seen.
        """
        return abs(self.relative.mean) + prediction(self.relative, pairs) if self.relative.sd is not None else self.largest


def versus(comparison: Comparison, arm_label: str, base_label: str, measure: str, suites: Sequence[str] | None = None) -> Paired | None:
    """One arm against another over the pairs of `suites` (None: all) that passed their gates; None where no pair has the measure."""
    return paired_runs(pairs(comparison, arm_label, base_label, suites), measure)


def pairs(comparison: Comparison, arm_label: str, base_label: str, suites: Sequence[str] | None = None) -> list[tuple[Run, Run]]:
    """Runs of one suite, seed and reference_id, of the arm and of its base; suites that failed a gate give none."""
    chosen = [suite for suite in comparison.passed if suites is None or suite in suites]
    return [pair for suite in chosen for pair in _of_suite(comparison.of(suite), arm_label, base_label)]


def paired_suites(comparison: Comparison, arm_label: str, base_label: str, suites: Sequence[str] | None = None) -> list[str]:
    """The suites that `pairs` has a pair of; the noise beside a comparison is theirs."""
    return list(dict.fromkeys(run.suite for run, _ in pairs(comparison, arm_label, base_label, suites)))


def contrasts(comparison: Comparison, suites: Sequence[str] | None = None) -> list[tuple[str, str]]:
    """The comparisons that have a pair, as labels: the house's own first, then arms of other names against each base."""
    arms = [arm for arm in comparison.arms if suites is None or arm.suite in suites]
    labels = {label: next(arm.variant for arm in arms if arm.label == label) for label in dict.fromkeys(arm.label for arm in arms)}
    known = {name for contrast in CONTRASTS for name in contrast}
    wanted = [*CONTRASTS, *((name, base) for name in dict.fromkeys(labels.values()) if name not in known for base in _BASES)]
    found = [(a, b) for variants in wanted for a in labels if labels[a] == variants[0] for b in labels if labels[b] == variants[1]]
    return [contrast for contrast in found if pairs(comparison, *contrast, suites)]


def noise_floor(comparison: Comparison, measure: str, suites: Sequence[str] | None = None) -> NoiseFloor | None:
    """The floor of `measure`: of the A/A arm where there is one, else of equal runs in different suites; None: nothing was run twice."""
    return next(iter(floors(comparison, measure, suites)), None)


def floors(comparison: Comparison, measure: str, suites: Sequence[str] | None = None) -> list[NoiseFloor]:
    """Every floor of `measure`, by source: AGAIN first, then SAME."""
    found = [_floor(source, repeated, measure) for source, repeated in _repeated(comparison, suites).items()]
    return [floor for floor in found if floor]


def above_floor(pair: Paired, floor: NoiseFloor | None) -> bool | None:
    """Whether the interval of the effect (Student's, of the mean of ratios) lies outside of what equal runs differ by.

    None where there is no floor, or nothing that could stand above it: the measure has no ratio. A single pair has no interval and is not above.
    """
    if floor is None or pair.mean_of_ratios is None:
        return None
    low, high = pair.mean_of_ratios.low, pair.mean_of_ratios.high
    return low is not None and high is not None and (low > floor.of_mean(pair.n) or high < -floor.of_mean(pair.n))


def against_floor(pair: Paired, floor: NoiseFloor | None) -> str:
    """`above_floor` in words, with the floor; empty where the measure has no ratio."""
    if pair.mean_of_ratios is None:
        return ""
    if floor is None:
        return NO_FLOOR
    if pair.n < 2:
        return "one pair, no interval"
    return f"{'above' if above_floor(pair, floor) else 'within'} the floor"


def told_apart(pair: Paired, floor: NoiseFloor | None) -> bool:
    """Whether the effect may be claimed: its interval excludes zero, and where there is a floor, lies above it."""
    found = pair.mean_of_ratios
    if found is None or found.low is None or found.high is None:
        return False
    return not found.low <= 0 <= found.high and above_floor(pair, floor) is not False


def _of_suite(arms: Sequence[Arm], arm_label: str, base_label: str) -> list[tuple[Run, Run]]:
    arm = next((arm for arm in arms if arm.label == arm_label), None)
    base = base_of(arm, arms, base_label) if arm else None
    return partners(arm, base) if arm and base else []


def _repeated(comparison: Comparison, suites: Sequence[str] | None) -> dict[str, list[tuple[Run, Run]]]:
    """By source, the pairs of runs that differ in nothing but their name, at least one of each pair in `suites`."""
    wanted = [suite for suite in comparison.passed if suites is None or suite in suites]
    arms = [(arm, comparison.of(suite)) for suite in wanted for arm in comparison.of(suite) if arm.variant == "ref2"]
    again = [pair for arm, others in arms for pair in _of_suite(others, arm.label, "ref")]
    by_id: dict[str, list[Run]] = {}
    for run in comparison.counted:
        if run.metrics and run.suite in comparison.passed:
            by_id.setdefault(run.metrics.run_id, []).append(run)
    twice = [(a, b) for runs in by_id.values() for a, b in combinations(runs, 2) if a.suite != b.suite and {a.suite, b.suite} & set(wanted)]
    same = [(b, a) for a, b in twice if not changed(a, b)]
    return {AGAIN: again, SAME: same}


def _floor(source: str, found: Sequence[tuple[Run, Run]], measure: str) -> NoiseFloor | None:
    values = [pair for pair in _values(found, measure) if min(pair) > 0]
    if not values:
        return None
    relative = [a / b - 1 for a, b in values]
    alike = sum(_ended_alike(a, b) for a, b in found)
    return NoiseFloor(source, len(values), summary(relative), max(max(pair) / min(pair) - 1 for pair in values), alike, len(found) - alike)


def _ended_alike(a: Run, b: Run) -> bool:
    ours, theirs = ((run.metrics.final or {}) if run.metrics else {} for run in (a, b))
    return all(ours.get(key) == theirs.get(key) for key in _DIGESTS)


def _values(found: Iterable[tuple[Run, Run]], measure: str) -> list[tuple[float, float]]:
    """The measure of both runs of each pair; a pair in which one lacks it is left out."""
    read = MEASURES[measure]
    both = [(read(a.metrics), read(b.metrics)) for a, b in found if a.metrics and b.metrics]
    return [(x, y) for x, y in both if x is not None and y is not None]


def paired_runs(found: Iterable[tuple[Run, Run]], measure: str) -> Paired | None:
    """The statistics of pairs of runs; None where no pair has the measure."""
    values = _values(found, measure)
    return paired([a for a, _ in values], [b for _, b in values]) if values else None
