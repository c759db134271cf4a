"""Tables 6 and 8: one suite after the other, the published row above the measured ones (one for each clock)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ecrl_cli.replication.report.cells import PUBLISHED, change, counted, estimate, of_means, printed, signed, suite_name
from ecrl_cli.replication.report.sample import CLOCKS, WALLS, Experiment
from ecrl_cli.replication.report.setting import in_short
from ecrl_cli.replication.report.values import BY_SUITE, SUITE_DRIFT, SUITES, SuiteValues
from ecrl_cli.report.formats import NONE
from ecrl_cli.report.model.replication import PublishedTable


@dataclass(frozen=True)
class _Column:
    """A column of the published table: its cell as printed, and as measured in one suite on one clock."""

    title: str
    printed: Callable[[SuiteValues], str]
    measured: Callable[[Experiment, str, str], str]


def _goodput(title: str, arm: str) -> _Column:
    return _Column(title, lambda values: printed(getattr(values, arm)), lambda e, suite, clock: estimate(e.mean(arm, clock, [suite])))


def _relative(title: str, name: str, arm: str, base: str) -> _Column:
    return _Column(title, lambda values: printed(getattr(values, name), "%"), lambda e, suite, clock: of_means(e.pair(arm, base, clock, [suite])))


def _stall_change(title: str, name: str) -> _Column:
    return _Column(title, lambda values: signed(getattr(values, name)), lambda e, suite, _: change(e.pair("ovl", "blk", "stall_s", [suite])))


def _wall_change(title: str, name: str) -> _Column:
    return _Column(title, lambda values: signed(getattr(values, name)), lambda e, suite, clock: change(e.pair("ovl", "blk", WALLS[clock], [suite])))


def _stall(title: str, arm: str) -> _Column:
    return _Column(title, lambda values: printed(getattr(values, f"{arm}_stall")), lambda e, suite, _: estimate(e.mean(arm, "stall_s", [suite])))


_GOODPUTS = (_goodput("Ref GP", "ref"), _goodput("Blk GP", "blk"), _goodput("Ovl GP", "ovl"))
_GAIN = _relative("Ovl vs Blk", "ovl_gain", "ovl", "blk")
_DROPS = (_relative("Blk vs Ref", "blk_drop", "blk", "ref"), _relative("Ovl vs Ref", "ovl_drop", "ovl", "ref"))
COLUMNS6 = (*_GOODPUTS, _GAIN, *_DROPS, _stall_change("Stall change (s)", "stall_change"))
COLUMNS8 = (*_GOODPUTS, _GAIN, _stall("Blk stall (s)", "blk"), _stall("Ovl stall (s)", "ovl"), _wall_change("Ovl - Blk wall (s)", "wall_change"))


def table6(experiment: Experiment) -> PublishedTable:
    """Ranked by the measured gain; suites that are not averaged stand last, with their published row."""
    measured = gains(experiment)
    ranked = sorted(_shown(experiment), key=lambda suite: measured.get(suite, -math.inf), reverse=True)
    published_rank = {values.suite: rank for rank, values in enumerate(sorted(SUITES, key=lambda values: -values.ovl_gain), 1)}
    rows = []
    for rank, suite in enumerate(ranked, 1):
        ranks = (str(published_rank[suite]), *(str(rank) if suite in measured else NONE for _ in CLOCKS))
        rows += [(place, *row) for place, row in zip(ranks, _rows(experiment, suite, COLUMNS6), strict=True)]
    title = f"Table 6: suites ranked by the gain of overlapped over blocking, {_how_many(experiment)}"
    note = " ".join([f"Ranked by the measured gain ({CLOCKS['goodput']}). {_drift()}", *experiment.remarks()])
    return PublishedTable("table6", title, note, ("Rank", *_titles(COLUMNS6)), tuple(rows), experiment.setting)


def table8(experiment: Experiment) -> PublishedTable:
    rows = [row for suite in _shown(experiment) for row in _rows(experiment, suite, COLUMNS8)]
    title = f"Table 8: every suite, {_how_many(experiment)}"
    note = " ".join([_drift(), *experiment.remarks()])
    return PublishedTable("table8", title, note, _titles(COLUMNS8), tuple(rows), experiment.setting)


def gains(experiment: Experiment, measure: str = "goodput") -> dict[str, float]:
    """By suite, the measured gain of overlapped over blocking as a ratio of means."""
    pairs = {suite: experiment.pair("ovl", "blk", measure, [suite]) for suite in experiment.suites}
    return {suite: pair.ratio_of_means for suite, pair in pairs.items() if pair and pair.ratio_of_means is not None}


def _shown(experiment: Experiment) -> list[str]:
    return [values.suite for values in SUITES if values.suite in experiment.present]


def _how_many(experiment: Experiment) -> str:
    return f"{len(experiment.suites)} of {len(SUITES)} averaged ({experiment.scale})"


def _drift() -> str:
    return (
        f"Two published reference arms of one configuration (CIFAR-100 ResNet-18, base and late) differ by {100 * SUITE_DRIFT:.1f}%:"
        " the drift between suites exceeds every gain in the table; within a suite, pairs of one seed are compared here."
    )


def _titles(columns: Sequence[_Column]) -> tuple[str, ...]:
    return ("Suite", "Values", *(column.title for column in columns), "n", "What differs")


def _rows(experiment: Experiment, suite: str, columns: Sequence[_Column]) -> list[tuple[str, ...]]:
    values = BY_SUITE[suite]
    rows: list[tuple[str, ...]] = [(suite_name(values), PUBLISHED, *(column.printed(values) for column in columns), "3 seeds", NONE)]
    differs = in_short(experiment.differs_in([suite]))
    for measure, clock in CLOCKS.items():
        pair = experiment.pair("ovl", "blk", measure, [suite])
        measured = [column.measured(experiment, suite, measure) for column in columns]
        rows.append((suite_name(values), f"measured, {clock}", *measured, counted(pair.n if pair else None), differs))
    return rows
