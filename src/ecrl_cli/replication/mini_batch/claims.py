"""The claims of the published study about accuracy and time, and the verdict of the runs here on
each, with intervals over the seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from ecrl_cli.studies.frame.result import ResultTable
from ecrl_cli.studies.frame.tables import item, table

SUPPORTED, CONTRADICTED, UNDECIDED, TOO_SMALL = (
    "supported",
    "contradicted",
    "undecided",
    "scale too small to say",
)
# published: immediate rollback and lossy forward recovery
ROLLBACK, FORWARD = "half_updated_rollback", "lossy_forward"
TWICE = (1.5, 2.1)  # "almost twice"
NEAR = (0.95, 1.1)  # "close to Baseline", "a slight overhead"
# A claim, how it is measured here, the value of each seed, and the verdict.
Judged = tuple[str, str, list[float], str]
_COLUMNS = (
    APPLICATION,
    item("claim", "published claim"),
    item("measured_as", "measured here as"),
    item("n", "seeds", "count"),
    *spread_columns("measured", "measured", "number"),
    item("verdict", "verdict"),
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
    return table("claims", "The published claims", _COLUMNS, rows, note)


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
    published = counts.config.scale == "paper"
    rows: list[Judged] = [
        *_of_rollback(runs, published),
        *_of_time(runs),
        *_of_survivors(runs, application, published),
        *_of_progress(runs, application),
    ]
    about = {"application": counts.named(application)}
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


def _of_rollback(runs: Sequence[Sequence[Run]], published: bool) -> Iterator[Judged]:
    """Immediate rollback beside Baseline; `published`: at the published scale."""
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
    yield from (
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


def _of_time(runs: Sequence[Sequence[Run]]) -> Iterator[Judged]:
    took = [
        fmean(
            cell["seconds"] / run["baseline"]["seconds"]
            for run in of_seed
            for cell in _cells(run, FORWARD)
        )
        for of_seed in runs
    ]
    yield (
        "lossy forward recovery takes about as long as Baseline",
        "times the mini-batch without the failure",
        took,
        _within(summary(took), *NEAR),
    )


def _of_survivors(
    runs: Sequence[Sequence[Run]], application: str, published: bool
) -> Iterator[Judged]:
    """Four survivors against two, and what progress does to four: said of ResNet-50; of NT3 the
    opposite. Nothing without cells of both.
    """
    more = application == "resnet50"
    if _all_have(runs, survivors=2) and _all_have(runs, survivors=4):
        gained = [
            100 * (_distance(of_seed, survivors=2) - _distance(of_seed, survivors=4))
            for of_seed in runs
        ]
        yield (
            "four survivors end nearer to Baseline than two"
            if more
            else "more survivors do not end nearer to Baseline",
            "points of accuracy by which two survivors are farther than four, mean over the cells",
            gained,
            _side(summary(gained), 0.0) if more else _not_above(summary(gained), 0.0),
        )
    if _all_have(runs, survivors=4, percent=25) and _all_have(runs, survivors=4, percent=75):
        fell = [
            100
            * (
                _distance(of_seed, survivors=4, percent=25)
                - _distance(of_seed, survivors=4, percent=75)
            )
            for of_seed in runs
        ]
        yield (
            "with four survivors, later failures end nearer to Baseline"
            if more
            else "later failures do not end nearer to Baseline",
            "points of accuracy by which 25% is farther than 75%, mean over the scenarios",
            fell,
            _side(summary(fell), 0.0) if more else _not_above(summary(fell), 0.0),
        )
    if more and _all_have(runs, survivors=4, percent=75):
        nearest = [
            100
            * min(
                abs(cell["accuracy"] - run["baseline"]["accuracy"])
                for run in of_seed
                for cell in _cells(run, FORWARD, survivors=4, percent=75)
            )
            for of_seed in runs
        ]
        yield (
            "with four survivors and 75% of the gradients, up to no difference from Baseline",
            "points of accuracy, the nearest scenario of a seed",
            nearest,
            _within(summary(nearest), 0.0, 0.0, published),
        )


def _of_progress(runs: Sequence[Sequence[Run]], application: str) -> Iterator[Judged]:
    """Effect of the moment in the training on the gaps; nothing with one scenario."""
    ordered = [sorted(of_seed, key=lambda run: run["mini_batch"]) for of_seed in runs]
    if any(len(of_seed) < 2 for of_seed in ordered):
        return
    gaps = [
        [100 * abs(run["baseline"]["accuracy"] - run["before"]["accuracy"]) for run in of_seed]
        for of_seed in ordered
    ]
    early = [first - fmean(later) for first, *later in gaps]
    yield (
        "a mini-batch moves the accuracy most in the beginning of the training",
        "points by which Before and Baseline are farther apart in the first scenario than later",
        early,
        _side(summary(early), 0.0),
    )
    backs = [[100 * _distance([run], strategy=ROLLBACK) for run in of_seed] for of_seed in ordered]
    if application == "resnet50":
        grew = [last - first for first, *_, last in backs]
        yield (
            "immediate rollback ends farther from Baseline as the training goes on",
            "points by which the last scenario is farther than the first",
            grew,
            _side(summary(grew), 0.0),
        )
    else:
        fell = [first - fmean(later) for first, *later in backs]
        yield (
            "immediate rollback ends farthest from Baseline in the beginning of the training",
            "points by which the first scenario is farther than later ones",
            fell,
            _side(summary(fell), 0.0),
        )


def _distance(of_seed: Sequence[Run], strategy: str = FORWARD, **those: int) -> float:
    """From Baseline, in accuracy: the mean of the cells with these survivors and percents."""
    return fmean(_distances(of_seed, strategy, **those))


def _all_have(runs: Sequence[Sequence[Run]], **those: int) -> bool:
    return all(any(_cells(run, FORWARD, **those) for run in of_seed) for of_seed in runs)


def _cells(run: Run, strategy: str, **those: int) -> list[Run]:
    """Only what failed after forward counts, as in the published study."""
    return [
        cell
        for cell in run["cells"]
        if cell["strategy"] == strategy and cell["percent"] and not cell["flipped"]
        if all(cell[key] == value for key, value in those.items())
    ]


def _distances(of_seed: Sequence[Run], strategy: str, **those: int) -> list[float]:
    """From Baseline, in accuracy: of every cell of every scenario."""
    return [
        abs(cell["accuracy"] - run["baseline"]["accuracy"])
        for run in of_seed
        for cell in _cells(run, strategy, **those)
    ]


def _not_above(found: Summary, bound: float) -> str:
    """Supported where the interval lies at or below `bound`, contradicted where it lies above."""
    if found.low is None or found.high is None or found.low <= bound < found.high:
        return UNDECIDED
    return CONTRADICTED if found.low > bound else SUPPORTED


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
