"""The claims of the published study about accuracy and time, and the verdict of the runs here on
each, with intervals over the seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from ecrl_cli.metrics.statistics import Summary, summary
from ecrl_cli.replication.mini_batch.counts import (
    APPLICATION,
    MiniBatchCounts,
    Run,
    spread,
    spread_columns,
)
from ecrl_cli.studies.frame.result import ResultColumn, ResultTable

SUPPORTED, CONTRADICTED, UNDECIDED, TOO_SMALL = (
    "supported",
    "contradicted",
    "undecided",
    "scale too small to say",
)
# published: immediate rollback and lossy forward recovery
ROLLBACK, FORWARD = "half_updated_rollback", "lossy_forward"
TWICE = (1.5, 2.1)  # "almost twice"
_COLUMNS = (
    APPLICATION,
    ResultColumn("claim", "published claim"),
    ResultColumn("measured_as", "measured here as"),
    ResultColumn("n", "seeds", "count"),
    *spread_columns("measured", "measured", "number"),
    ResultColumn("verdict", "verdict"),
)


def claims(counts: MiniBatchCounts) -> ResultTable:
    """A row per claim and application; empty unless both strategies were tried."""
    rows = [row for application in counts.applications for row in _of(counts, application)]
    note = (
        "The published study has one run each. Verdicts rest on the interval over the seeds, one"
        " value each: contradicted or supported only where all of it lies on one side. How large a"
        " difference in accuracy is depends on the data: that is judged at the published scale"
        " alone."
    )
    return ResultTable("claims", "The published claims", _COLUMNS, tuple(rows), note)


def _of(counts: MiniBatchCounts, application: str) -> list[dict[str, Any]]:
    runs = [
        scenarios
        for record in counts.runs_of(application)
        if (scenarios := record.found["scenarios"])
    ]
    if not runs or not all(
        any(_cells(run, name) for run in of_seed)
        for of_seed in runs
        for name in (ROLLBACK, FORWARD)
    ):
        return []
    further = [
        100 * (fmean(_distances(of_seed, ROLLBACK)) - fmean(_distances(of_seed, FORWARD)))
        for of_seed in runs
    ]
    moved = [
        100 * fmean(abs(run["baseline"]["accuracy"] - run["before"]["accuracy"]) for run in of_seed)
        for of_seed in runs
    ]
    farthest = [100 * max(_distances(of_seed, ROLLBACK)) for of_seed in runs]
    slower = [
        fmean(
            cell["seconds"] / run["baseline"]["seconds"]
            for run in of_seed
            for cell in _cells(run, ROLLBACK)
        )
        for of_seed in runs
    ]
    published = counts.config.scale == "paper"
    rows = (
        (
            "lossy forward recovery ends nearer to Baseline than immediate rollback, in every case",
            (
                "points of accuracy by which rollback is farther from Baseline, mean over the cells"
                " of a seed"
            ),
            further,
            _side(summary(further), 0.0),
        ),
        (
            "immediate rollback takes almost twice a mini-batch",
            "times the mini-batch without the failure",
            slower,
            _within(summary(slower), *TWICE),
        ),
        (
            "a mini-batch moves the accuracy by 2.6 to 8.5%",
            "points between Before and Baseline",
            moved,
            _within(summary(moved), 2.6, 8.5, published),
        ),
        (
            "immediate rollback ends up to 5.5% from Baseline",
            "points, the farthest cell of a seed",
            farthest,
            _within(summary(farthest), 0, 5.5, published),
        ),
    )
    about = {APPLICATION.key: counts.named(application)}
    return [
        about
        | {
            "claim": claim,
            "measured_as": how,
            "n": len(values),
            **spread(values, "measured"),
            "verdict": verdict,
        }
        for claim, how, values, verdict in rows
    ]


def _cells(run: Run, strategy: str) -> list[Run]:
    """Only what failed after forward counts, as in the published study."""
    return [
        cell
        for cell in run["cells"]
        if cell["strategy"] == strategy and cell["percent"] and not cell["flipped"]
    ]


def _distances(of_seed: Sequence[Run], strategy: str) -> list[float]:
    """From Baseline, in accuracy: of every cell of every scenario."""
    return [
        abs(cell["accuracy"] - run["baseline"]["accuracy"])
        for run in of_seed
        for cell in _cells(run, strategy)
    ]


def _side(found: Summary, bound: float) -> str:
    """Supported where the interval lies above `bound`, contradicted where it lies below."""
    if found.low is None or found.high is None or found.low <= bound <= found.high:
        return UNDECIDED
    return SUPPORTED if found.low > bound else CONTRADICTED


def _within(found: Summary, low: float, high: float, judged: bool = True) -> str:
    """Supported where the interval lies within `low` and `high`, contradicted where it lies beside
    them.
    """
    if not judged:
        return TOO_SMALL
    if found.low is None or found.high is None:
        return UNDECIDED
    if found.high < low or found.low > high:
        return CONTRADICTED
    return SUPPORTED if low <= found.low and found.high <= high else UNDECIDED
