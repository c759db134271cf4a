"""Accuracy and overhead of every cell, the scenarios and the corrections, beside the published values."""

from __future__ import annotations

from typing import Any

from ecrl_cli.replication.mini_batch.cells import CORRECTIONS, Cell
from ecrl_cli.replication.mini_batch.counts import (
    AGAINST_COLUMNS,
    APPLICATION,
    APPLICATIONS,
    PUBLISHED_AT,
    STRATEGIES,
    Case,
    Counts,
    against,
    label,
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
