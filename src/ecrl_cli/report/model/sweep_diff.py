"""Compares two sweeps (two machines, two commits): pairs their runs, and lists what differs between
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from ecrl_cli.errors import ConfigError
from ecrl_cli.report.formats import listed
from ecrl_cli.report.model.arms import one_to_one
from ecrl_cli.report.model.comparison import ALL, Comparison, compare
from ecrl_cli.report.model.contrast import Contrast, contrast, contrasts, noise_floor, paired_runs
from ecrl_cli.report.model.inputs import run_inputs
from ecrl_cli.report.model.run_record import ON_FILE, Judging, Run, read_runs
from ecrl_cli.report.model.settings import flat_config


@dataclass(frozen=True)
class Match:
    """A run and its counterpart. `label`: the arm on our side. `differing`: settings in which the
    two differ; none if the run ids are equal.
    """

    label: str
    ours: Run
    theirs: Run
    differing: tuple[str, ...] = ()


@dataclass(frozen=True)
class EnvironmentDifference:
    """A difference between the environments of two sweeps: a dotted key of environment.json and its
    distinct values on each side.
    """

    key: str
    ours: tuple[str, ...]
    theirs: tuple[str, ...]


@dataclass(frozen=True)
class SweepDiff:
    """`ours` compared with `theirs`: relative differences are ours / theirs - 1. `ours_name`,
    `theirs_name`: the folders.
    `unmatched`: by side (0: ours), the runs without a counterpart. Only suites that passed their
    gates on both sides are averaged.
    """

    ours_name: str
    theirs_name: str
    ours: Comparison
    theirs: Comparison
    matched: tuple[Match, ...]
    unmatched: tuple[tuple[Run, ...], tuple[Run, ...]]

    @cached_property
    def passed(self) -> list[str]:
        return [
            suite
            for suite in self.ours.passed
            if suite in self.theirs.passed
            and any(match.ours.suite == suite for match in self.matched)
        ]

    @property
    def failed(self) -> list[str]:
        """Suites with counterparts that failed a gate on either side."""
        return [
            suite
            for suite in dict.fromkeys(match.ours.suite for match in self.matched)
            if suite not in self.passed
        ]

    @property
    def scopes(self) -> list[tuple[str, tuple[str, ...]]]:
        each: list[tuple[str, tuple[str, ...]]] = [(suite, (suite,)) for suite in self.passed]
        pooled = all(
            set(self.passed) <= set(side.pooled_suites) for side in (self.ours, self.theirs)
        )
        return [*each, (ALL, tuple(self.passed))] if len(each) > 1 and pooled else each

    @property
    def labels(self) -> list[str]:
        return [
            label
            for label in self.ours.labels
            if any(match.label == label for match in self.matched)
        ]

    @property
    def settings(self) -> dict[str, int]:
        """The settings in which counterparts differ, and in how many pairs."""
        keys = [key for match in self.matched for key in match.differing]
        return {key: keys.count(key) for key in dict.fromkeys(keys)}

    @property
    def differences(self) -> list[EnvironmentDifference]:
        """The differences between the two environments, as recorded by the counted runs."""
        a, b = _environments(self.ours.counted), _environments(self.theirs.counted)
        return [
            EnvironmentDifference(key, a.get(key, ()), b.get(key, ()))
            for key in sorted({*a, *b})
            if set(a.get(key, ())) != set(b.get(key, ()))
        ]

    def contrast(
        self, label: str, measure: str, scope: str = "", suites: Sequence[str] | None = None
    ) -> Contrast | None:
        """One of our arms compared with its counterpart over the pairs of `suites` (None: all) that
        passed; None if no pair has the measure.

        Its floor is the side's on which means of so many equal runs differ more; None if either
        side has none.
        """
        chosen = [suite for suite in self.passed if suites is None or suite in suites]
        runs = [
            (match.ours, match.theirs)
            for match in self.matched
            if match.label == label and match.ours.suite in chosen
        ]
        pair = paired_runs(runs, measure)
        if pair is None:
            return None
        floors = [noise_floor(side, measure, suites) for side in (self.ours, self.theirs)]
        known = [floor for floor in floors if floor]
        floor = (
            max(known, key=lambda floor: floor.of_mean(pair.n))
            if len(known) == len(floors)
            else None
        )
        return Contrast(
            label,
            self.theirs_name,
            measure,
            pair,
            floor,
            scope,
            tuple(chosen),
            scale=self.ours.scale(suites),
        )

    def contrasts(self, measures: Sequence[str]) -> list[Contrast]:
        """Every arm against its counterpart, scope by scope and measure by measure."""
        wanted = [
            (label, measure, *scope)
            for scope in self.scopes
            for label in self.labels
            for measure in measures
        ]
        return [found for each in wanted if (found := self.contrast(*each))]

    def effects(self, measure: str = "goodput") -> list[tuple[Contrast, Contrast]]:
        """Each comparison of two arms that exists on both sides, ours and theirs, suite by suite
        and over all.
        """
        found = []
        for scope, suites in self.scopes:
            for ours in contrasts(self.ours, scope, suites, [measure]):
                theirs = contrast(self.theirs, ours.arm, ours.base, measure, suites)
                found += [(ours, theirs)] if theirs else []
        return found


def read_sweep_diff(
    ours: Comparison, dirs: Sequence[Path], other: Path, judging: Judging = ON_FILE
) -> SweepDiff:
    """`ours`, the runs of `dirs`, compared with those of `other`.

    RunDirectoryError if `other` is neither run nor sweep; ConfigError if no run has a counterpart.
    """
    theirs = compare(read_runs(run_inputs([other]), judging))
    made = sweep_diff(
        ours, theirs, *_folders([folder.resolve() for folder in dirs], other.resolve())
    )
    if not made.matched:
        fact = (
            f"no finished run of {made.theirs_name} has a counterpart in {made.ours_name} (of the"
            " same suite, variant, seed and scale)"
        )
        raise ConfigError("--against", fact, "name two sweeps of one matrix or suite")
    return made


def _folders(dirs: Sequence[Path], other: Path) -> tuple[str, str]:
    """A name for each side; with the parent folder if they would be equal."""
    if len(dirs) > 1:
        return "these runs", other.name
    alike = dirs[0].name == other.name
    return (
        (f"{dirs[0].parent.name}/{dirs[0].name}", f"{other.parent.name}/{other.name}")
        if alike
        else (dirs[0].name, other.name)
    )


def sweep_diff(
    ours: Comparison, theirs: Comparison, ours_name: str = "ours", theirs_name: str = "theirs"
) -> SweepDiff:
    """Pairs counterparts one to one: equal suite and run id; else equal suite, arm, seed and
    scale.
    """

    def name(side: Comparison, run: Run) -> tuple[str, str, str, str]:
        return run.suite, side.label(run), run.seed, run.metrics.scale if run.metrics else ""

    def exactly(run: Run) -> tuple[str, str]:
        return run.suite, run.metrics.run_id if run.metrics else ""

    def without(pairs: Sequence[tuple[Run, Run]]) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
        taken = {id(run) for pair in pairs for run in pair}
        return tuple(run for run in ours.counted if id(run) not in taken), tuple(
            run for run in theirs.counted if id(run) not in taken
        )

    pairs = one_to_one(ours.counted, theirs.counted, exactly, exactly)
    pairs += one_to_one(*without(pairs), partial(name, ours), partial(name, theirs))
    counterparts = {id(run): other for run, other in pairs}
    matched = tuple(
        Match(ours.label(run), run, other, _differing(run, other))
        for run in ours.counted
        if (other := counterparts.get(id(run)))
    )
    return SweepDiff(ours_name, theirs_name, ours, theirs, matched, without(pairs))


def _differing(a: Run, b: Run) -> tuple[str, ...]:
    if a.metrics and b.metrics and a.metrics.run_id == b.metrics.run_id:
        return ()
    ours, theirs = flat_config(a.config), flat_config(b.config)
    return tuple(key for key in sorted({*ours, *theirs}) if ours.get(key) != theirs.get(key)) or (
        "run_id",
    )


def _environments(runs: Iterable[Run]) -> dict[str, tuple[str, ...]]:
    """By dotted key, the distinct values that the runs recorded."""
    found: dict[str, list[str]] = {}
    for run in runs:
        for key, value in _dotted(run.environment).items():
            if value not in found.setdefault(key, []):
                found[key].append(value)
    return {key: tuple(values) for key, values in found.items()}


def _dotted(value: Any, prefix: str = "") -> dict[str, str]:
    if isinstance(value, dict):
        return {
            key: text
            for name, item in value.items()
            for key, text in _dotted(item, f"{prefix}.{name}" if prefix else str(name)).items()
        }
    if isinstance(value, list):
        return {prefix: listed([", ".join(_dotted(item).values()) or str(item) for item in value])}
    return {prefix: "none" if value is None else str(value)}
