"""Which runs at hand repeat which published experiment, and their statistics, computed by `report`
and `metrics`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ecrl_cli.metrics.statistics import Paired, Summary, summary
from ecrl_cli.replication.report.setting import SettingDifference, differences, in_full
from ecrl_cli.replication.report.values import BY_EXPERIMENT, BY_SUITE
from ecrl_cli.report.formats import listed, printable
from ecrl_cli.report.model.arms import Arm
from ecrl_cli.report.model.comparison import Comparison
from ecrl_cli.report.model.contrast import Contrast, contrast, pairs, versus
from ecrl_cli.report.model.run_record import Run
from ecrl_cli.report.model.suite_gates import all_passed, pooling_obstacles

SUITES_OF = {"exp4": tuple(BY_SUITE)} | {ident: (ident,) for ident in BY_EXPERIMENT}
# measure: the clock's name
CLOCKS = {"goodput": "launch to target", "goodput_published_clock": "published clock"}
# by clock: its wall time
WALLS = {"goodput": "wall_s", "goodput_published_clock": "wall_published_clock_s"}
DIVERGENCES: dict[str, Callable[[Run], float | None]] = {
    "auc": lambda run: _distance(run, "loss", "auc"),
    "maximum": lambda run: _distance(run, "loss", "maximum"),
    "mean": lambda run: _distance(run, "loss", "mean"),
    "l2": lambda run: _distance(run, "state", "parameters", "l2"),
}


@dataclass(frozen=True)
class Experiment:
    """The repeated part of one published experiment.

    `suites`: those averaged. `refused`: reason by suite. `missing`: those not run.
    """

    ident: str
    comparison: Comparison
    suites: tuple[str, ...]
    refused: dict[str, str]
    missing: tuple[str, ...]

    @property
    def is_matrix(self) -> bool:
        """Whether it is experiment 4, the matrix of eight suites; the others have one suite
        each.
        """
        return self.ident == "exp4"

    @property
    def present(self) -> tuple[str, ...]:
        return (*self.suites, *self.refused)

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """Every run of its suites, counted or not."""
        return tuple(run for run in self.comparison.runs if run.suite in self.present)

    def runs_of(self, variant: str, suites: Sequence[str] | None = None) -> list[Run]:
        """The counted runs of one variant in the averaged suites."""
        arms = [self.arm(suite, variant) for suite in (self.suites if suites is None else suites)]
        return [run for arm in arms if arm for run in arm.runs]

    @property
    def scales(self) -> list[str]:
        return sorted({run.metrics.scale for run in self.runs if run.metrics})

    @property
    def scale(self) -> str:
        """The scale, for titles."""
        return f"scale {listed(self.scales)}" if self.scales else "no scale on record"

    def differs_in(self, suites: Sequence[str]) -> tuple[SettingDifference, ...]:
        """Settings that differ from the published runs of these suites."""
        return differences(run for run in self.runs if run.suite in suites)

    @property
    def setting(self) -> str:
        return in_full(self.differs_in(self.present), self.present)

    def arm(self, suite: str, variant: str) -> Arm | None:
        """The only arm of that variant, if it is averaged."""
        found = [
            arm for arm in self.comparison.of(suite) if arm.variant == variant and arm.averaged
        ]
        return found[0] if len(found) == 1 and suite in self.suites else None

    def mean(
        self, variant: str, measure: str, suites: Sequence[str] | None = None
    ) -> Summary | None:
        """For several suites the mean of their means with its interval over suites; for one suite
        the mean of its runs with its interval over seeds.
        """
        arms = [self.arm(suite, variant) for suite in (self.suites if suites is None else suites)]
        found = [entry for entry in (arm.summary(measure) for arm in arms if arm) if entry]
        if len(found) < 2:
            return found[0] if found else None
        return summary([entry.mean for entry in found])

    def _averaged(self, suites: Sequence[str] | None) -> Sequence[str]:
        """The `suites` (None: all) that are averaged."""
        return (
            self.suites if suites is None else [suite for suite in suites if suite in self.suites]
        )

    def contrast(
        self, variant: str, base: str, measure: str, suites: Sequence[str] | None = None
    ) -> Contrast | None:
        """`variant` against `base`, pooled over the suites: pairs of equal suite, seed and
        reference.
        """
        chosen = self._averaged(suites)
        return contrast(self.comparison, variant, base, measure, chosen) if chosen else None

    def pair(
        self, variant: str, base: str, measure: str, suites: Sequence[str] | None = None
    ) -> Paired | None:
        """The statistics of `contrast` alone, without its noise floor and scales."""
        return versus(self.comparison, variant, base, measure, self._averaged(suites))

    def pass_rate(self, variant: str) -> float | None:
        """The share of runs judged valid, including refused suites and unfinished runs; over valid
        runs alone it would always be 1.
        """
        runs = [run for run in self.runs if run.variant == variant]
        return sum(run.verdict.status == "valid" for run in runs) / len(runs) if runs else None

    def divergence(self, runs: Sequence[Run], key: str) -> Summary | None:
        """Distance of `runs` from their references; runs not compared are left out."""
        values = [value for value in map(DIVERGENCES[key], runs) if value is not None]
        return summary(values) if values else None

    def loss_change(self, suites: Sequence[str] | None = None) -> Summary | None:
        """Mean absolute loss difference of ovl minus that of blk, over pairs of equal suite and
        seed.
        """
        found = [
            (DIVERGENCES["mean"](a), DIVERGENCES["mean"](b))
            for a, b in pairs(self.comparison, "ovl", "blk", self._averaged(suites))
        ]
        values = [a - b for a, b in found if a is not None and b is not None]
        return summary(values) if values else None

    def remarks(self) -> list[str]:
        """Refused and missing suites, for the notes."""
        by_reason: dict[str, list[str]] = {}
        for suite, why in self.refused.items():
            by_reason.setdefault(why, []).append(suite)
        told = [
            f"Listed, not averaged ({printable(why)}): {printable(', '.join(suites))}."
            for why, suites in by_reason.items()
        ]
        return told + ([f"Not run: {', '.join(self.missing)}."] if self.missing else [])


def experiments(comparison: Comparison) -> list[Experiment]:
    """The published experiments with at least one suite at hand; a sweep over settings of a
    published suite counts as another experiment.
    """
    found = [_experiment(ident, suites, comparison) for ident, suites in SUITES_OF.items()]
    return [
        experiment
        for experiment in found
        if any(not _several(suite, comparison) for suite in experiment.present)
    ]


def _experiment(ident: str, names: Sequence[str], comparison: Comparison) -> Experiment:
    present = [suite for suite in names if suite in comparison.suites]
    refused = {
        suite: why
        for suite in present
        if (why := _several(suite, comparison) or _failed(suite, comparison))
    }
    refused |= _unlike([suite for suite in present if suite not in refused], comparison)
    missing = tuple(suite for suite in names if suite not in present)
    return Experiment(
        ident,
        comparison,
        tuple(suite for suite in present if suite not in refused),
        refused,
        missing,
    )


def _several(suite: str, comparison: Comparison) -> str:
    """Variants with more than one arm; none of these arms is the published one."""
    variants = [arm.variant for arm in comparison.of(suite)]
    several = sorted({variant for variant in variants if variants.count(variant) > 1})
    return f"several configurations of {listed(several)}" if several else ""


def _failed(suite: str, comparison: Comparison) -> str:
    gates = comparison.gates[suite]
    return (
        ""
        if all_passed(gates)
        else f"gate failed: {', '.join(gate.name for gate in gates if not gate.passed)}"
    )


def _unlike(suites: Sequence[str], comparison: Comparison) -> dict[str, str]:
    """Suites run on another machine or scale than the first; a table averages one machine only."""
    firsts = [next(run for run in comparison.counted if run.suite == suite) for suite in suites]
    return {
        run.suite: f"another {listed(what)} than {suites[0]}"
        for run in firsts[1:]
        if (what := pooling_obstacles(firsts[0], run))
    }


def diverged(run: Run, *keys: str) -> object:
    """The value under `keys` in divergence.json; None if missing or the file is not ours."""
    found: object = run.divergence
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def same_losses(run: Run) -> bool | None:
    """Whether every committed step had bit for bit the loss of the reference; None if not
    compared.
    """
    loss = diverged(run, "loss")
    return (
        loss["first_differing_step"] is None
        if isinstance(loss, dict) and "first_differing_step" in loss
        else None
    )


def _distance(run: Run, *keys: str) -> float | None:
    """A distance, or None for a loss that is not finite (a run may end in NaN)."""
    found = diverged(run, *keys)
    return float(found) if isinstance(found, int | float) and math.isfinite(found) else None
