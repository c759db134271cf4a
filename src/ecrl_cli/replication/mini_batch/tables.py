"""Accuracy and overhead of every cell beside the published values, the scenarios, the corrections; the performance model beside the measurements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ecrl_cli.metrics.statistics import ratio_interval, ratio_of_means, summary
from ecrl_cli.replication.mini_batch.cells import CORRECTIONS, Cell
from ecrl_cli.replication.mini_batch.counts import (
    AGAINST_COLUMNS,
    APPLICATION,
    APPLICATIONS,
    PUBLISHED_AT,
    STARTS,
    STRATEGIES,
    Case,
    Counts,
    MiniBatch,
    Run,
    against,
    label,
    measured,
    predicted_s,
    slowdown,
    spread,
    spread_columns,
)
from ecrl_cli.studies.frame.result import Column, Table

CORRECTED = {
    "mask": "the update is masked; published: gradients of zero",
    "buffers": "a rollback takes BatchNorm's buffers back; published: forward is read-only",
    "division": "survivors divide by their number; naive: by the number of all",
}


def accuracy(tally: Counts) -> Table:
    """Published figures 3 and 4 as a table: the cells as configured, Before and Baseline first."""
    rows = [row for case in tally.cases for row in _rows(tally, case)]
    columns = (
        APPLICATION,
        PUBLISHED_AT,
        Column("state", "state"),
        Column("n", "seeds", "count"),
        *spread_columns("accuracy", "held-out accuracy", "share"),
        *AGAINST_COLUMNS,
        *spread_columns("slowdown", "slowdown to Baseline", "number"),
        Column("lost", "lost (sample, layer) pairs", "share"),
        Column("repeated", "repeated ones", "share"),
    )
    note = (
        "Accuracy after the mini-batch of the scenario, intervals over the seeds. F-25%: a quarter of the gradient tensors, in backward order, "
        "had been averaged among all workers and applied. Slowdown: processor time of the mini-batch under the strategy by that without the "
        "failure, all strategies in turn; of a checkpoint restart the replay alone."
    )
    return Table("accuracy", "Accuracy and overhead after the failed mini-batch, by strategy", columns, tuple(rows), note)


def _rows(tally: Counts, case: Case) -> list[dict[str, Any]]:
    about = case.about
    baselines, seconds = case.baselines("accuracy"), case.baselines("seconds")
    before = [run["before"]["accuracy"] for run in case.runs]
    rows = [about | {"state": "Before", "n": len(before), **spread(before, "accuracy"), **against(before, baselines)}]
    rows.append(about | {"state": "Baseline", "n": len(before), **spread(baselines, "accuracy"), "slowdown": 1.0})
    for cell in (each for each in tally.plan() if not each.flipped and case.whole(each)):
        found = case.cells(cell)
        reached = [each["accuracy"] for each in found]
        row = about | {"state": label(cell), "n": len(found), **spread(reached, "accuracy"), **against(reached, baselines)}
        row |= slowdown([each["seconds"] for each in found], seconds)
        rows.append(row | {key: found[0][key] for key in ("lost", "repeated")})
    return rows


def scenarios(tally: Counts) -> Table:
    """The mini-batch used for each published one, and the model's accuracy there."""
    rows = []
    for case in tally.cases:
        size, workers = case.size, tally.config.replicas
        epoch = (case.mini_batch - 1) // size.per_epoch(workers)
        row = case.about | {
            "published_epoch": _EPOCHS[case.published],
            "mini_batch": case.mini_batch,
            "epoch": epoch,
            "of": size.mini_batches(workers),
        }
        rows.append(row | spread([run["before"]["accuracy"] for run in case.runs], "before") | spread(case.baselines("accuracy"), "baseline"))
    columns = (
        APPLICATION,
        PUBLISHED_AT,
        Column("published_epoch", "published epoch", "count"),
        Column("mini_batch", "mini-batch here", "count"),
        Column("epoch", "its epoch", "count"),
        Column("of", "of", "count"),
        *spread_columns("before", "accuracy before", "share"),
        *spread_columns("baseline", "accuracy after it without a failure", "share"),
    )
    note = (
        "NT3's 500th mini-batch lies in epoch 8 with 56 mini-batches an epoch (1,120 / 20), as the published text says; with the 55 of the published "
        "table it would be the 9th."
    )
    return Table("scenarios", "The scenarios", columns, tuple(rows), note)


_EPOCHS = {200: 0, 4_000: 10, 10_000: 25, 25_000: 64, 10: 0, 250: 4, 500: 8}


def corrections(tally: Counts) -> Table:
    """The effect of each correction: the same cells and seeds with and without it."""
    rows = []
    for application in tally.applications:
        for name in CORRECTIONS:
            for cell in dict.fromkeys(_without_numbers(each) for each in tally.plan() if each.flipped == name):
                rows.append({"application": APPLICATIONS[application], "correction": CORRECTED[name], **_both(tally, application, cell)})
    columns = (
        APPLICATION,
        Column("correction", "correction"),
        Column("strategy", "strategy"),
        Column("percent", "failure at, % of the gradients", "count"),
        Column("cells", "cells, over seeds and scenarios", "count"),
        Column("changed", "of which end in another state", "count"),
        Column("corrected", "mean accuracy, corrected", "share"),
        Column("other", "mean accuracy, the other way", "share"),
        *spread_columns("difference", "the other way less corrected, in points", "change"),
    )
    note = (
        "Pairs of one run. Plain SGD does not move under a gradient of zero, and a network without BatchNorm has no such buffers: there nothing "
        "changes."
    )
    return Table("corrections", "What difference the corrections make", columns, tuple(rows), note)


def _without_numbers(cell: Cell) -> Cell:
    return Cell(cell.strategy, cell.percent, 0, cell.flipped)


def _both(tally: Counts, application: str, cell: Cell) -> dict[str, Any]:
    """Pairs of cells without and with the correction; `corrected` is the arm that has it, whichever of the two is configured."""
    pairs = []
    for case in (each for each in tally.cases if each.application == application):
        for other in (each for each in tally.plan() if _without_numbers(each) == cell):
            usual = Cell(other.strategy, other.percent, other.survivors)
            pairs += case.pairs(usual, other)
    if not getattr(tally.config, cell.flipped):
        pairs = [(other, usual) for usual, other in pairs]
    corrected, published = ([each[side]["accuracy"] for each in pairs] for side in (0, 1))
    found = against(published, corrected)
    row = {"strategy": STRATEGIES[cell.strategy], "percent": cell.percent, "cells": len(pairs)}
    row |= {"changed": sum(one["digest"] != other["digest"] for one, other in pairs)}
    row |= {"corrected": spread(corrected, "x")["x"], "other": spread(published, "x")["x"]}
    return row | {key: found[key] for key in ("difference", "difference_low", "difference_high")}


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
