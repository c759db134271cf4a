"""The effect of each axis of a sweep, paired over all other axes; its slices by the levels of the
others; interactions of two axes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from ecrl_cli.metrics.statistics import paired
from ecrl_cli.report.model.arms import MEASURES, one_to_one
from ecrl_cli.report.model.axes import VARIANT, Axis, axes_of
from ecrl_cli.report.model.comparison import EVERY, Comparison
from ecrl_cli.report.model.contrast import ARM_PAIRS, Contrast, noise_floor, paired_runs
from ecrl_cli.report.model.run_record import Run
from ecrl_cli.report.model.settings import SUITE
from ecrl_cli.report.model.suite_gates import pooling_obstacles

LEAST_QUADRUPLES = 3  # of runs: fewer give an interaction no interval
RunPair = tuple[Run, Run]


@dataclass(frozen=True)
class Level:
    """One level of an axis."""

    axis: Axis
    value: str

    @property
    def short(self) -> str:
        return self.axis.short(self.value)

    def holds(self, run: Run) -> bool:
        return self.axis.level(run) == self.value


@dataclass(frozen=True)
class Slice:
    """The effect where another axis has one level."""

    level: Level
    contrast: Contrast


@dataclass(frozen=True)
class Effect:
    """Effect of one level of an axis against another one. `whole`: over all pairs of runs that
    agree in everything else.
    """

    level: Level
    base: Level
    whole: Contrast
    slices: tuple[Slice, ...]

    @property
    def axis(self) -> Axis:
        return self.level.axis

    @property
    def contrasts(self) -> tuple[Contrast, ...]:
        """The effect over all pairs, then slice by slice."""
        return (self.whole, *(each.contrast for each in self.slices))


@dataclass(frozen=True)
class Interaction:
    """How far the effect of `level` against `base` changes from `other_base` to `other`: the ratio
    of the two ratios, minus 1, over quadruples of runs that agree in everything else. Zero: the two
    axes act independently.
    """

    level: Level
    base: Level
    other: Level
    other_base: Level
    contrast: Contrast


@dataclass(frozen=True)
class _Compared:
    """The runs that may be compared, with their axes. The suite is one only if nothing else tells
    two runs apart.
    """

    comparison: Comparison
    runs: tuple[Run, ...]
    axes: tuple[Axis, ...]

    def of(self, level: Level) -> list[Run]:
        return [run for run in self.runs if level.holds(run)]

    def pairs(self, level: Level, base: Level) -> list[RunPair]:
        """Runs that differ in this axis alone, of one machine and version, each in one pair at
        most.
        """
        others = [axis for axis in self.axes if axis is not level.axis]

        def rest(run: Run) -> Hashable:
            return run.sweep, run.seed, *(axis.level(run) for axis in others)

        found = one_to_one(self.of(level), self.of(base), rest, rest)
        return [(a, b) for a, b in found if not pooling_obstacles(a, b)]

    def compared_levels(self, axis: Axis) -> list[tuple[Level, Level, list[RunPair]]]:
        """Each level with the first one before it that it has pairs with; variants as they are
        compared elsewhere.
        """
        key = ("levels", axis.key)
        if key not in self.comparison.memo:
            self.comparison.memo[key] = self._compared_levels(axis)
        found: list[tuple[Level, Level, list[RunPair]]] = self.comparison.memo[key]
        return found

    def _compared_levels(self, axis: Axis) -> list[tuple[Level, Level, list[RunPair]]]:
        levels = [Level(axis, value) for value in axis.levels]
        if axis.key == VARIANT:
            named = {level.value: level for level in levels}
            wanted = [
                (named[a], named[b])
                for a, b in ARM_PAIRS
                if a in named and b in named and a != "ref2"
            ]
            wanted += [
                (level, levels[0])
                for level in levels[1:]
                if not any(level in both for both in wanted) and level.value != "ref2"
            ]
            return [(*both, found) for both in wanted if (found := self.pairs(*both))]
        chosen = []
        for place, level in enumerate(levels):
            paired_with = ((level, base, self.pairs(level, base)) for base in levels[:place])
            chosen += (
                [first] if (first := next((each for each in paired_with if each[2]), None)) else []
            )
        return chosen

    def contrast(
        self, level: Level, base: Level, found: Sequence[RunPair], measure: str, scope: str
    ) -> Contrast | None:
        pair = paired_runs(found, measure)
        if pair is None:
            return None
        suites = tuple(dict.fromkeys(run.suite for both in found for run in both))
        floor = noise_floor(self.comparison, measure, suites)
        seeds, scale = len({run.seed for run, _ in found}), self.comparison.scale(suites)
        return Contrast(level.short, base.short, measure, pair, floor, scope, suites, seeds, scale)


def effects(comparison: Comparison, measure: str = "goodput") -> list[Effect]:
    """The effects of all axes on a measure, over the runs of the suites that passed their gates;
    none for what has no pairs.
    """
    key = ("effects", measure)
    if key not in comparison.memo:
        comparison.memo[key] = _effects(_compared(comparison), measure)
    found: list[Effect] = comparison.memo[key]
    return found


def _effects(among: _Compared, measure: str) -> list[Effect]:
    made = []
    for axis in _shown(among.axes):
        for level, base, found in among.compared_levels(axis):
            whole = among.contrast(level, base, found, measure, EVERY)
            made += (
                [Effect(level, base, whole, tuple(_slices(among, level, base, found, measure)))]
                if whole
                else []
            )
    return made


def swept(found: Iterable[Effect]) -> list[Effect]:
    """The effects of axes other than the variant, whose arms are compared by name elsewhere."""
    return [effect for effect in found if effect.axis.key != VARIANT]


def _slices(
    among: _Compared, level: Level, base: Level, found: Sequence[RunPair], measure: str
) -> Iterable[Slice]:
    """By each other axis in which the pairs differ, and each of its levels."""
    for axis in _shown(among.axes):
        held = [value for value in axis.levels if any(axis.level(a) == value for a, _ in found)]
        for value in held if axis is not level.axis and len(held) > 1 else ():
            part = Level(axis, value)
            scope = f"{axis.name} {part.short}" if axis.is_named else part.short
            contrast = among.contrast(
                level, base, [(a, b) for a, b in found if part.holds(a)], measure, scope
            )
            if contrast:
                yield Slice(part, contrast)


def interactions(comparison: Comparison, measure: str = "goodput") -> list[Interaction]:
    """Every two axes that have LEAST_QUADRUPLES or more quadruples of runs."""
    key = ("interactions", measure)
    if key not in comparison.memo:
        comparison.memo[key] = _interactions(_compared(comparison), measure)
    found: list[Interaction] = comparison.memo[key]
    return found


def _interactions(among: _Compared, measure: str) -> list[Interaction]:
    levels = {axis.key: among.compared_levels(axis) for axis in _shown(among.axes)}
    made = []
    for first, second in combinations(levels.values(), 2):
        for level, base, found in first:
            for other, other_base, _ in second:
                contrast = _interaction(among, found, (other, other_base), measure)
                if contrast:
                    named = replace(
                        contrast,
                        arm=f"{level.short} against {base.short}",
                        base=f"{other.short} instead of {other_base.short}",
                    )
                    made.append(Interaction(level, base, other, other_base, named))
    return made


def _interaction(
    among: _Compared, found: Sequence[RunPair], across: tuple[Level, Level], measure: str
) -> Contrast | None:
    """The ratios of `found` at one level of another axis against those at its base."""
    other, base = across
    axes = {axis.key for axis in among.axes} - {other.axis.key}

    def rest(both: RunPair) -> Hashable:
        return (
            both[0].sweep,
            both[0].seed,
            *(run.settings.get(key, "") for run in both for key in sorted(axes)),
        )

    there = {
        rest(both): ratio
        for both in found
        if base.holds(both[0]) and (ratio := _ratio(both, measure))
    }
    ratios = [
        (ratio, there[rest(both)])
        for both in found
        if other.holds(both[0]) and rest(both) in there and (ratio := _ratio(both, measure))
    ]
    if len(ratios) < LEAST_QUADRUPLES:
        return None
    suites = tuple(dict.fromkeys(run.suite for both in found for run in both))
    pair = paired([a for a, _ in ratios], [b for _, b in ratios])
    return Contrast(
        other.short,
        base.short,
        measure,
        pair,
        None,
        EVERY,
        suites,
        len({a.seed for a, _ in found}),
        among.comparison.scale(suites),
    )


def _ratio(both: RunPair, measure: str) -> float | None:
    """The measure of the first run over that of the second; None if either has none or it is not
    positive.
    """
    values = [MEASURES[measure](run.metrics) if run.metrics else None for run in both]
    above, below = values
    return above / below if above and below and above > 0 and below > 0 else None


def _shown(axes: Iterable[Axis]) -> list[Axis]:
    """The axes that have effects: the suite, where it is one, only keeps runs apart."""
    return [axis for axis in axes if axis.key != SUITE]


def _compared(comparison: Comparison) -> _Compared:
    if ("compared",) not in comparison.memo:
        runs = tuple(run for run in comparison.counted if run.suite in comparison.passed)
        comparison.memo["compared",] = _Compared(comparison, runs, axes_of(runs))
    found: _Compared = comparison.memo["compared",]
    return found
