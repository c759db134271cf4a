"""The study's records grouped by application and scenario; the measured parts of an overhead; and
what a model of them predicts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ecrl_cli.config.studies import MiniBatchFailure
from ecrl_cli.metrics.statistics import paired, ratio_interval, ratio_of_means, summary
from ecrl_cli.replication.mini_batch.cells import ScenarioTrial, planned
from ecrl_cli.replication.mini_batch.sizes import PAPER, SIZES, Size
from ecrl_cli.studies.frame.study import Record
from ecrl_cli.studies.frame.tables import Cells, item


@dataclass(frozen=True)
class MeasuredParts:
    """Means over the seeds for one application at one scale with `workers` logical workers; names
    ending in _s are seconds.

    `mini_batch_s`: processor time of a mini-batch with the workers in parallel, so that other load
    on the machine does not count. `init_s`: data, model, optimizer and the first pass, in a process
    that has imported its libraries. `checkpoint_s`: until it is durable. `load_s`: reading and
    restoring it. `layers`: number of parameter tensors, `model_bytes`: their size.
    """

    application: str
    workers: int
    mini_batches_per_epoch: int
    mini_batches: int
    layers: int
    model_bytes: int
    mini_batch_s: float
    init_s: float
    checkpoint_s: float
    load_s: float

    @property
    def restart_s(self) -> float:
        """From a running process to the first mini-batch that it repeats."""
        return self.init_s + self.load_s

    def typed(self) -> dict[str, float | int]:
        """The keys of `recovery-overhead`, to three digits. Its `init_s` (processes and
        communicators) is missing: this is a simulation in one process.
        """
        seconds = {
            "mini_batch_s": self.mini_batch_s,
            "checkpoint_s": self.checkpoint_s,
            "restart_s": self.restart_s,
        }
        return {
            "every": self.mini_batches_per_epoch,
            **{key: float(f"{value:.3g}") for key, value in seconds.items()},
        }


COUNTS = ("workers", "mini_batches_per_epoch", "mini_batches", "layers", "model_bytes")
SECONDS = ("mini_batch_s", "init_s", "checkpoint_s", "load_s")


def measured(records: Sequence[Record]) -> tuple[MeasuredParts, ...]:
    """The parts of each application in the records of `mini-batch-failure`, in record order."""
    found = []
    cells = [record for record in records if record.facts["kind"] == "cells"]
    for application in dict.fromkeys(record.facts["application"] for record in cells):
        parts = [
            record.found["parts"] for record in cells if record.facts["application"] == application
        ]
        facts: dict[str, Any] = {name: int(parts[0][name]) for name in COUNTS}
        facts |= {name: summary([part[name] for part in parts]).mean for name in SECONDS}
        found.append(MeasuredParts(application=application, **facts))
    return tuple(found)


# Strategies whose processes start anew; under the others survivors continue, and replacements join
# in parallel to their work.
STARTS = ("checkpoint_restart", "half_updated_rollback", "consistent_rollback")


@dataclass(frozen=True)
class MiniBatch:
    """Seconds of one mini-batch without a failure, of its forward pass alone, and of a copy of the
    state.
    """

    whole_s: float
    forward_s: float
    copy_s: float

    def begun_s(self, percent: int) -> float:
        """Seconds until `percent` of the gradients are applied; after the forward pass every
        gradient is assumed to take equally long.
        """
        return self.forward_s + percent / 100 * (self.whole_s - self.forward_s)


def predicted_s(strategy: str, percent: int, replayed: int, parts: MiniBatch) -> float:
    """Seconds from the start of the failing mini-batch to its end under `strategy`; for a restart
    only the replay of `replayed` mini-batches.
    """
    begun = parts.begun_s(percent)
    return {
        "checkpoint_restart": replayed * parts.whole_s,
        "half_updated_rollback": begun + parts.copy_s + parts.whole_s,
        "consistent_rollback": parts.copy_s + begun + parts.copy_s + parts.whole_s,
        "lossy_forward": parts.whole_s,
        "skip": begun,
    }[strategy]


APPLICATIONS = {"resnet50": "ResNet-50", "nt3": "NT3"}
STRATEGIES = {
    "checkpoint_restart": "Checkpoint restart",
    "half_updated_rollback": "Immediate rollback as published",
    "consistent_rollback": "Consistent rollback",
    "lossy_forward": "Lossy forward",
    "skip": "Skip",
}
APPLICATION = item("application", "application")
PUBLISHED_AT = item("published", "published mini-batch", "count")
HERE = item("mini_batch", "mini-batch here", "count")
Run = dict[str, Any]


def named(application: str, size: Size) -> str:
    """The trained network in words: the published one, or the one that stands in for it."""
    if size == PAPER[application]:
        return APPLICATIONS[application]
    return f"{APPLICATIONS.get(size.model.name, size.model.name)} of width {size.model.width}"


@dataclass(frozen=True)
class ScenarioRuns:
    """A scenario of an application: the `published` mini-batch, the one used for it here, and one
    run per seed.
    """

    application: str
    size: Size
    published: int
    mini_batch: int
    runs: tuple[Run, ...]

    @property
    def label(self) -> str:
        published = "" if self.mini_batch == self.published else f" (published: {self.published:,})"
        return f"{named(self.application, self.size)}, mini-batch {self.mini_batch:,}{published}"

    @property
    def about(self) -> Run:
        """The columns of a row that name this case."""
        return {
            "application": named(self.application, self.size),
            "published": self.published,
            "mini_batch": self.mini_batch,
        }

    def cells(self, cell: ScenarioTrial) -> list[Run]:
        """Results of `cell`, one per run that has it."""
        return [found for run in self.runs for found in run["cells"] if cell_of(found) == cell]

    def pairs(self, one: ScenarioTrial, other: ScenarioTrial) -> list[tuple[Run, Run]]:
        """Results of both cells, for the runs that tried both."""
        tried = [{cell_of(found): found for found in run["cells"]} for run in self.runs]
        return [(found[one], found[other]) for found in tried if one in found and other in found]

    def whole(self, cell: ScenarioTrial) -> bool:
        """Whether every run tried `cell`; a gate reports missing ones."""
        return len(self.cells(cell)) == len(self.runs)

    def baselines(self, key: str) -> list[Any]:
        return [run["baseline"][key] for run in self.runs]

    def exact(self, found: Run) -> bool:
        """Whether the run ended bit for bit in the state of its run without the failure."""
        return any(
            found is each and each["digest"] == run["baseline"]["digest"]
            for run in self.runs
            for each in run["cells"]
        )


class MiniBatchCounts:
    """`cases`: those with records. `cells`, `longs`, `dormant`: records by kind."""

    def __init__(self, config: MiniBatchFailure, records: Sequence[Record]) -> None:
        self.config, self.records = config, records
        self.trained = [record for record in records if record.facts["kind"] == "cells"]
        self.longs = [record for record in records if record.facts["kind"] == "long"]
        self.dormant = next(
            (record.found for record in records if record.facts["kind"] == "dormant"), None
        )
        self.cases = list(self._cases())

    @property
    def applications(self) -> list[str]:
        """The applications that have a case."""
        return list(dict.fromkeys(case.application for case in self.cases))

    def named(self, application: str) -> str:
        return named(application, SIZES[self.config.scale][application])

    def samples(self, application: str) -> str:
        """The form of its made-up samples, with the published one where that differs."""
        here, published = (
            f"{' x '.join(map(str, size.shape))} in {size.classes} classes"
            for size in (SIZES[self.config.scale][application], PAPER[application])
        )
        return f"{APPLICATIONS[application]}: {here}" + (
            f", published {published}" if here != published else ""
        )

    def plan(self) -> list[ScenarioTrial]:
        return planned(self.config)

    def of(self, application: str) -> list[ScenarioRuns]:
        return [case for case in self.cases if case.application == application]

    def tried(self, application: str) -> list[tuple[Run, Run]]:
        """Every result of a cell without an inverted correction, after its run."""
        return [
            (run, found)
            for case in self.of(application)
            for run in case.runs
            for found in run["cells"]
            if not found["flipped"]
        ]

    def every(self) -> Iterator[tuple[ScenarioRuns, Run]]:
        """Every result of every cell, with its case."""
        return ((case, found) for case in self.cases for run in case.runs for found in run["cells"])

    def runs_of(self, application: str) -> list[Record]:
        return [record for record in self.trained if record.facts["application"] == application]

    def _cases(self) -> Iterator[ScenarioRuns]:
        for application in self.config.applications:
            size = SIZES[self.config.scale][application]
            for published, mini_batch in size.scenarios.items():
                found = (
                    each
                    for record in self.runs_of(application)
                    for each in record.found["scenarios"]
                )
                runs = tuple(each for each in found if each["mini_batch"] == mini_batch)
                if runs:
                    yield ScenarioRuns(application, size, published, mini_batch, runs)


def cell_of(found: Run) -> ScenarioTrial:
    return ScenarioTrial(found["strategy"], found["percent"], found["survivors"], found["flipped"])


def label(cell: ScenarioTrial) -> str:
    """The strategy's name as in the published figures."""
    if cell.strategy == "checkpoint_restart":
        return STRATEGIES[cell.strategy]
    when = f"F-{cell.percent}%" if cell.percent else "in forward"
    return (
        f"{STRATEGIES[cell.strategy]},"
        f" {when}{f', {cell.survivors} survivors' if cell.survivors else ''}"
    )


def spread(values: Sequence[float], key: str) -> dict[str, Any]:
    """Mean and 95% interval (Student's t) under `key`."""
    found = summary(values)
    return {key: found.mean, f"{key}_low": found.low, f"{key}_high": found.high}


def spread_columns(key: str, text: str, kind: str) -> tuple[Cells, ...]:
    return (
        item(key, text, kind),
        item(f"{key}_low", f"{text}, 95% low", kind),
        item(f"{key}_high", f"{text}, 95% high", kind),
    )


def against(values: Sequence[float], baselines: Sequence[float]) -> dict[str, Any]:
    """`values` against those of the same runs without the failure: the difference, and the ratio of
    the means minus one.
    """
    found = paired(values, baselines)
    difference = {
        "difference": found.difference.mean,
        "difference_low": found.difference.low,
        "difference_high": found.difference.high,
    }
    return difference | {
        "relative": found.ratio_of_means,
        "relative_low": found.ratio_low,
        "relative_high": found.ratio_high,
    }


AGAINST_COLUMNS = (
    *spread_columns("difference", "difference to Baseline, in points", "change"),
    *spread_columns("relative", "relative to Baseline (ratio of means)", "change"),
)


def slowdown(seconds: Sequence[float], baselines: Sequence[float]) -> dict[str, Any]:
    """Slowdown against the run without the failure: ratio of the means with its BCa interval."""
    low, high = ratio_interval(seconds, baselines) or (None, None)
    return {
        "slowdown": ratio_of_means(seconds, baselines),
        "slowdown_low": low,
        "slowdown_high": high,
    }
