"""The performance model beside the measurements, and what lossy forward leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ecrl_cli.metrics.statistics import ratio_interval, ratio_of_means, summary
from ecrl_cli.replication.mini_batch.components import measured
from ecrl_cli.replication.mini_batch.counts import APPLICATION, APPLICATIONS, STRATEGIES, Counts, Run, spread, spread_columns
from ecrl_cli.replication.mini_batch.model import STARTS, MiniBatch, predicted_s
from ecrl_cli.studies.frame.result import Column, Table


def model(tally: Counts) -> Table:
    """Predicted from the measured parts of the same scenario and run, over all scenarios."""
    rows = []
    for parts in measured(tally.records):
        tried = list(_tried(tally, parts.application))
        for strategy, percent in dict.fromkeys((found["strategy"], found["percent"]) for _, found in tried):
            pairs = [(run, found) for run, found in tried if (found["strategy"], found["percent"]) == (strategy, percent)]
            row: dict[str, Any] = {"application": APPLICATIONS[parts.application], "strategy": STRATEGIES[strategy], "percent": percent}
            rows.append(row | _beside(pairs, parts.restart_s if strategy in STARTS else 0.0))
    columns = (
        APPLICATION,
        Column("strategy", "strategy"),
        Column("percent", "failure at, % of the gradients", "count"),
        Column("n", "cells, over seeds and scenarios", "count"),
        *spread_columns("measured", "measured", "seconds"),
        Column("predicted", "predicted", "seconds"),
        *spread_columns("error", "prediction against measured", "change"),
        Column("overhead", "overhead of a failure, with the restart", "seconds"),
        Column("times", "in mini-batches", "number"),
    )
    note = (
        "Predicted from three parts, measured in turn with the strategies: the mini-batch without a failure, its forward pass, a copy of the state. "
        "Behind forward every gradient tensor counts as equally long. Rollbacks: what was begun, the copies, the mini-batch again; lossy forward: "
        "the mini-batch; skip: what was begun; a restart: the mini-batches since the checkpoint. Overhead: measured, less the mini-batch, plus the "
        "restart of the table above where processes start anew; lossy forward and skip go on without newcomers. Without communication."
    )
    return Table("model", "The performance model beside what was measured", columns, tuple(rows), note)


def _tried(tally: Counts, application: str) -> Iterator[tuple[Run, Run]]:
    """Every cell without an inverted correction, with its run."""
    for case in (each for each in tally.cases if each.application == application):
        yield from ((run, found) for run in case.runs for found in run["cells"] if not found["flipped"])


def _beside(pairs: list[tuple[Run, Run]], restart_s: float) -> dict[str, Any]:
    whole = [run["baseline"]["seconds"] for run, _ in pairs]
    seconds = [found["seconds"] for _, found in pairs]
    predicted = [
        predicted_s(found["strategy"], found["percent"], found["replayed"], MiniBatch(once, run["parts"]["forward"], run["parts"]["copy"]))
        for once, (run, found) in zip(whole, pairs, strict=True)
    ]
    low, high = ratio_interval(predicted, seconds) or (None, None)
    error: dict[str, float | None] = {"error": ratio_of_means(predicted, seconds) - 1}
    error |= {"error_low": None if low is None else low - 1, "error_high": None if high is None else high - 1}
    overhead = summary(seconds).mean - summary(whole).mean + restart_s
    row = {"n": len(pairs), **spread(seconds, "measured"), "predicted": summary(predicted).mean, **error}
    return row | {"overhead": overhead, "times": overhead / summary(whole).mean}


def outliers(tally: Counts) -> Table:
    """Distance of the survivors' average from the full one, by their number and by whether the outlier is among the dead."""
    rows = []
    for application in tally.applications:
        lossy = [each for each in _tried(tally, application) if each[1]["strategy"] == "lossy_forward"]
        for number, lost in sorted({(found["survivors"], found["outlier_lost"]) for _, found in lossy}):
            group = [(run, found) for run, found in lossy if (found["survivors"], found["outlier_lost"]) == (number, lost)]
            away = [abs(found["accuracy"] - run["baseline"]["accuracy"]) for run, found in group]
            off = [found["off"] for _, found in group if found["off"] is not None]
            row = {"application": APPLICATIONS[application], "survivors": number, "outlier": "dead" if lost else "survives", "n": len(group)}
            rows.append(row | (spread(off, "off") if off else {}) | spread(away, "away"))
    columns = (
        APPLICATION,
        Column("survivors", "survivors", "count"),
        Column("outlier", "most unusual worker"),
        Column("n", "cells, over seeds, scenarios and shares", "count"),
        *spread_columns("off", "survivors' average from everybody's, by its length", "number"),
        *spread_columns("away", "distance to Baseline in accuracy, in points", "change"),
    )
    note = (
        "Over the gradients behind the failure. The most unusual worker: the one whose gradients lie farthest from the average of all. Cells of one "
        "run are not independent: the intervals are too narrow."
    )
    return Table("outliers", "What lossy forward leaves out of the average", columns, tuple(rows), note)
