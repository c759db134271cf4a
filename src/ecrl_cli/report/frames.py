"""Runs as pandas DataFrames, read from their records: `ecrl.load`. No report need have been
written.

docs/data.md has every column with its unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from ecrl_cli.errors import EcrlError
from ecrl_cli.history.lineage import seen_before
from ecrl_cli.linux.parallel import parallel_map
from ecrl_cli.metrics.distance import by_step, distances
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.report.model.comparison import Comparison, compare
from ecrl_cli.report.model.inputs import run_inputs
from ecrl_cli.report.model.run_record import Run, judge_again, read_runs
from ecrl_cli.report.tables.records import CSV_FILES
from ecrl_cli.verify.exactly_once import epoch_counts
from ecrl_cli.verify.reference import bounded
from ecrl_cli.verify.verification_input import Case

IDENTITY = ("run", "suite", "arm", "seed")  # the first columns of every frame but `effects`
_STEP = (
    *("attempt", "rank", "global_step", "epoch", "loss", "seconds", "samples", "lr"),
    *("world_size", "replayed", "at", "time"),
)
_EPOCH = ("epoch", "consumed", "duplicates", "missing", "extra")
_DISTANCE = (
    *("reference", "global_step", "component", "l2", "relative_l2", "max_ulp"),
    *("differing", "tensors"),
)
_VERDICT = ("verdict", "promise", "status", "message", "reference")


@dataclass(frozen=True)
class Results:
    """The runs of the folders that `load` was given; each frame is made when it is first asked
    for.
    """

    comparison: Comparison

    def __repr__(self) -> str:
        return f"<{len(self.comparison.runs)} runs of {len(self.comparison.suites)} suites>"

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row per run: verdict, goodput, seconds by category, checkpoints, final state."""
        return self._table("runs.csv")

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row per run, attempt, rank and step, in the order in which a rank did them."""
        rows = [row for run in self.comparison.runs for row in _steps(run, self._identity(run))]
        return _typed(pd.DataFrame(rows, columns=[*IDENTITY, *_STEP]))

    @cached_property
    def epochs(self) -> pd.DataFrame:
        """One row per run and epoch of its committed sequence: samples that occur twice, are
        missing or belong to no step.
        """
        rows = [row for run in self.comparison.runs for row in _epochs(run, self._identity(run))]
        return _typed(pd.DataFrame(rows, columns=[*IDENTITY, *_EPOCH]))

    @cached_property
    def distances(self) -> pd.DataFrame:
        """One row per run, step and component: how far the state is from the reference's, at every
        step that both have a checkpoint of.
        """
        rows = [row for run in self.comparison.runs for row in _distances(run, self._identity(run))]
        return _typed(pd.DataFrame(rows, columns=[*IDENTITY, *_DISTANCE]))

    @cached_property
    def checkpoints(self) -> pd.DataFrame:
        """One row per submitted checkpoint."""
        return self._table("checkpoints.csv")

    @cached_property
    def restarts(self) -> pd.DataFrame:
        """One row per restart, with its seconds by phase."""
        return self._table("restarts.csv")

    @cached_property
    def recoveries(self) -> pd.DataFrame:
        """One row per recovery of any kind."""
        return self._table("recoveries.csv")

    @cached_property
    def verdicts(self) -> pd.DataFrame:
        """One row per run and promise."""
        rows = [row for run in self.comparison.runs for row in _verdicts(run, self._identity(run))]
        return _typed(pd.DataFrame(rows, columns=[*IDENTITY, *_VERDICT]))

    @cached_property
    def effects(self) -> pd.DataFrame:
        """One row per comparison of two arms and measure, with its intervals and the noise
        floor.
        """
        return self._table("comparisons.csv")

    def _table(self, file: str) -> pd.DataFrame:
        return _typed(pd.DataFrame(CSV_FILES[file](self.comparison)))

    def _identity(self, run: Run) -> tuple[Any, ...]:
        return run.name, run.suite, self.comparison.label(run), run.seed


def load(folders: Sequence[str | Path], judge: bool = True) -> Results:
    """The runs in `folders`: run directories and sweep folders. Nothing is written.

    `judge`: an ended run without a verdict on file that holds is judged now, in memory; otherwise
    its verdict stays `missing`. RunDirectoryError for a folder that is neither.
    """
    runs = read_runs(run_inputs([Path(folder) for folder in folders]))
    due = [number for number, run in enumerate(runs) if judge and _unjudged(run)]
    for number, judged in zip(
        due, parallel_map(_judged, [runs[number] for number in due]), strict=True
    ):
        runs[number] = judged
    return Results(compare(runs))


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    """`frame` with seeds as numbers, so that they sort as such; as text where a manifest names one
    that is none.
    """
    if "seed" in frame and all(str(seed).lstrip("-").isdigit() for seed in frame["seed"]):
        return frame.assign(seed=frame["seed"].astype("int64"))
    return frame


def _unjudged(run: Run) -> bool:
    ended = run.supervisor is not None and run.supervisor.terminal_status != "running"
    return ended and run.verdict.status == "missing"


def _judged(run: Run) -> Run:
    try:
        verdict, divergence = judge_again(run.input.layout)
    except (EcrlError, OSError) as error:
        return replace(run, problems=(*run.problems, str(error)))
    return replace(run, verdict=verdict, divergence=divergence)


def _steps(run: Run, identity: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """A run whose records cannot be read has no rows: `runs` says why it is left out."""
    try:
        records = bounded(run.input.layout)
    except (EcrlError, OSError):
        return
    before = seen_before(records)
    for logs in records.attempt_logs:
        for rank, lines in sorted(logs.ranks.items()):
            for line in lines.events:
                step, loss = line.global_step, line.loss
                mean = fmean(loss) if isinstance(loss, tuple) else loss
                counts = (line.epoch, mean, line.seconds, line.sample_ids_count, line.lr)
                times = (line.world_size, step <= before.get(logs.attempt, 0), line.at, line.time)
                yield *identity, logs.attempt, rank, step, *counts, *times


def _epochs(run: Run, identity: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    try:
        counts = epoch_counts(Case(bounded(run.input.layout)))
    except (EcrlError, OSError):
        return
    for epoch, count in counts.items():
        yield *identity, epoch, *astuple(count)


def _distances(run: Run, identity: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """A checkpoint that the integrity check refuses has no rows: its run's verdict says why."""
    name = run.verdict.reference
    ours = run.input.layout.checkpoints
    theirs = RunLayout(run.input.layout.root.parent / name).checkpoints
    if not name or not ours.is_dir() or not theirs.is_dir():
        return
    mine, its = by_step(ours), by_step(theirs)
    for step in sorted(mine.keys() & its.keys()):
        try:
            found = distances(mine[step], its[step])
        except (EcrlError, OSError):
            continue
        for component, apart in found.items():
            measured = (apart.l2, apart.relative_l2, apart.max_ulp)
            yield *identity, name, step, component, *measured, apart.differing, apart.tensors


def _verdicts(run: Run, identity: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    verdict = run.verdict
    if not verdict.findings:
        yield (
            *identity,
            verdict.status,
            "",
            verdict.status,
            run.reason or verdict.why,
            verdict.reference,
        )
    for finding in verdict.findings:
        yield (
            *identity,
            verdict.status,
            finding.promise,
            finding.status,
            finding.message,
            verdict.reference,
        )
