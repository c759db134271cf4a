"""The published numbers and settings (published.yaml) as typed values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ecrl_cli.config.codec import decode


@dataclass(frozen=True)
class SuiteValues:
    """A suite's row of Tables 6 and 8. Goodputs in steps/s, gains and drops in percent, stalls and
    walls in seconds; changes are ovl - blk.
    """

    dataset: str
    model: str
    failure: str
    ref: float
    blk: float
    ovl: float
    ovl_gain: float
    blk_drop: float
    ovl_drop: float
    stall_change: float
    blk_stall: float
    ovl_stall: float
    wall_change: float

    @property
    def suite(self) -> str:
        return f"{self.dataset}-{self.model}-{self.failure}"


@dataclass(frozen=True)
class ArmValues:
    """A row of table 5. `difference`: under "Ovl-Block", in percent, percentage points, else the
    measure's unit.
    """

    ref: float
    blk: float
    ovl: float
    difference: float | None = None

    @property
    def arms(self) -> tuple[float, float, float]:
        return self.ref, self.blk, self.ovl


@dataclass(frozen=True)
class SliceValues:
    """A row of Table 7: overlapped against blocking in percent, stall in seconds, mean absolute
    loss difference.
    """

    axis: str
    group: str
    gain: float
    stall_change: float
    loss_change: float


@dataclass(frozen=True)
class Item:
    """A row of Table 2."""

    label: str
    value: str


@dataclass(frozen=True)
class PublishedAxis:
    """A row of Table 3."""

    values: str
    count: int
    role: str


@dataclass(frozen=True)
class Factor:
    """A row of Table 4."""

    label: str
    role: str
    treatment: str


@dataclass(frozen=True)
class Spread:
    """Over pairs, in percent."""

    mean: float
    least: float
    most: float


@dataclass(frozen=True)
class CountedRuns:
    """A count out of all runs."""

    runs: int
    of: int


@dataclass(frozen=True)
class ExperimentValues:
    """An experiment of the project report. Goodputs in steps/s by arm; `drops`: printed
    percentages; `divergence`: distances to the reference.
    """

    ident: str
    title: str
    source: str
    goodput: dict[str, float]
    drops: dict[str, float]
    restarts: dict[str, float]
    divergence: dict[str, dict[str, float]]


@dataclass(frozen=True)
class PublishedSetting:
    """A published setting and where it stands."""

    value: Any
    source: str = "not stated; the authors' public configuration"

    @property
    def stated(self) -> bool:
        return self.source != PublishedSetting.source


@dataclass(frozen=True)
class Values:
    """The keys of published.yaml, which cites the source of each number."""

    exp4_prefix: str
    suites: tuple[SuiteValues, ...]
    table5: dict[str, ArmValues]
    stall_reduction: float
    write_reduction: float
    wall_reduction: float
    writes_counted: dict[str, int]
    writes_submitted: int
    supervisor_clock_gain: Spread
    first_line_clock_gain: float
    diverged_after_failure: CountedRuns
    replayed_steps: int
    most_inflight: int
    restart_gap_s: float
    table7: tuple[SliceValues, ...]
    loss_difference: dict[str, float]
    table2: dict[str, Item]
    table3: dict[str, PublishedAxis]
    manifest: dict[str, int]
    table4: dict[str, Factor]
    experiments: tuple[ExperimentValues, ...]
    settings: dict[str, dict[str, PublishedSetting]]


PUBLISHED = decode(
    Values,
    yaml.load(
        Path(__file__).with_name("published.yaml").read_text(encoding="utf-8"),
        Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader),  # a tenth of the time
    ),
)
SUITES = PUBLISHED.suites
BY_SUITE = {values.suite: values for values in SUITES}
BY_EXPERIMENT = {values.ident: values for values in PUBLISHED.experiments}
ARMS = {"exp4": ("ref", "blk", "ovl")} | {
    ident: tuple(values.goodput) for ident, values in BY_EXPERIMENT.items()
}
# by suite, the published experiment that it belongs to
EXPERIMENTS = {ident: ident for ident in ARMS} | dict.fromkeys(BY_SUITE, "exp4")


def published_setting(suite: str) -> dict[str, PublishedSetting]:
    """The published run's setting by key; empty if there was none of this name."""
    settings = PUBLISHED.settings
    if suite in BY_SUITE:
        found = BY_SUITE[suite]
        sections = ["every", "exp4", found.dataset, found.model, found.failure]
    else:
        sections = ["every", "project", suite] if suite in BY_EXPERIMENT else []
    return {key: setting for section in sections for key, setting in settings[section].items()}
