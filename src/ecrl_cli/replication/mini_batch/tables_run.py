"""Tables of the applications' properties and costs, the replay, the long runs and the dormant workers."""

from __future__ import annotations

from typing import Any

from ecrl_cli.metrics.statistics import summary
from ecrl_cli.replication.mini_batch.counts import (
    AGAINST_COLUMNS,
    APPLICATION,
    APPLICATIONS,
    PUBLISHED_AT,
    STRATEGIES,
    Case,
    Counts,
    MeasuredParts,
    against,
    measured,
    spread,
    spread_columns,
)
from ecrl_cli.studies.frame.result import Column, Table

# As printed, column by column: model size, layers, mini-batch, mini-batches per epoch, epochs, and four durations in seconds.
PUBLISHED = {
    "resnet50": ("600 MiB", 10, 32, 390, 90, 0.17, 3.0, 0.48, 4.09),
    "nt3": ("91 MiB", 50, 20, 55, 10, 2.2, 1.9, 3.4, 2.5),
}


def properties(tally: Counts) -> Table:
    """Published Table I."""
    rows = [_property(tally, parts) for parts in measured(tally.records)]
    columns = (
        APPLICATION,
        Column("bytes", "model size", "bytes"),
        Column("published_size", "published model size"),
        Column("layers", "layers (parameter tensors)", "count"),
        Column("published_layers", "published layers", "count"),
        Column("batch", "mini-batch per worker", "count"),
        Column("published_batch", "published", "count"),
        Column("per_epoch", "mini-batches per epoch", "count"),
        Column("published_per_epoch", "published", "count"),
        Column("epochs", "epochs", "count"),
        Column("published_epochs", "published", "count"),
        Column("mini_batch_s", "mean mini-batch", "seconds"),
        Column("published_mini_batch_s", "published", "seconds"),
        Column("init_s", "initialisation", "seconds"),
        Column("published_init_s", "published", "seconds"),
        Column("checkpoint_s", "checkpoint", "seconds"),
        Column("published_checkpoint_s", "published", "seconds"),
        Column("restart_s", "restart", "seconds"),
        Column("published_restart_s", "published", "seconds"),
    )
    note = (
        "Published Table I beside ours. Its sizes and numbers of layers look swapped between the two: its text has ResNet-50 of many small layers "
        "and NT3 of few huge ones, and the 24 million parameters of the former are 91 MiB, the 155 million of the latter 591 MiB. Initialisation: "
        "data, model, optimizer and a first pass, in a process that has its libraries; restart: that, and reading the checkpoint. A checkpoint "
        "counts until it is durable."
    )
    return Table("properties", "The applications and what does not depend on the scenario", columns, tuple(rows), note)


def _property(tally: Counts, parts: MeasuredParts) -> dict[str, Any]:
    size, printed = next(case.size for case in tally.cases if case.application == parts.application), PUBLISHED[parts.application]
    keys = ("size", "layers", "batch", "per_epoch", "epochs", "mini_batch_s", "init_s", "checkpoint_s", "restart_s")
    row: dict[str, Any] = {"application": APPLICATIONS[parts.application], "bytes": parts.model_bytes, "layers": parts.layers, "batch": size.batch}
    row |= {"per_epoch": parts.mini_batches_per_epoch, "epochs": size.epochs}
    row |= {key: getattr(parts, key) for key in ("mini_batch_s", "init_s", "checkpoint_s", "restart_s")}
    return row | {f"published_{key}": value for key, value in zip(keys, printed, strict=True)}


def replay(tally: Counts) -> Table:
    """Published Figure 2c."""
    rows = [_replay(tally, case) for case in tally.cases if _restarted(case)]
    columns = (
        APPLICATION,
        PUBLISHED_AT,
        Column("replayed", "mini-batches replayed", "count"),
        Column("per_epoch", "of an epoch's", "count"),
        *spread_columns("measured", "replay", "seconds"),
        Column("predicted", "predicted", "seconds"),
        Column("error", "prediction against measured", "change"),
        Column("epoch", "whole epoch", "seconds"),
    )
    note = (
        "Processor time, as if the workers computed side by side. Predicted: mini-batches since the checkpoint times the mean mini-batch of the "
        "runs without failures. Expected of a random failure: half an epoch."
    )
    return Table("replay", "Replay after a restart from the epoch's checkpoint", columns, tuple(rows), note)


def _restarted(case: Case) -> list[dict[str, Any]]:
    return [each for run in case.runs for each in run["cells"] if each["strategy"] == "checkpoint_restart"]


def _replay(tally: Counts, case: Case) -> dict[str, Any]:
    found, parts = _restarted(case), next(each for each in measured(tally.records) if each.application == case.application)
    seconds = [each["seconds"] for each in found]
    predicted = found[0]["replayed"] * parts.mini_batch_s
    row = case.about | {
        "replayed": found[0]["replayed"],
        "per_epoch": parts.mini_batches_per_epoch,
        "predicted": predicted,
        "epoch": parts.mini_batches_per_epoch * parts.mini_batch_s,
    }
    return row | spread(seconds, "measured") | {"error": predicted / summary(seconds).mean - 1}


def long_run(tally: Counts) -> Table:
    """Results of the runs trained to the end."""
    rows = []
    for application in dict.fromkeys(record.facts["application"] for record in tally.longs):
        runs = [record.found for record in tally.longs if record.facts["application"] == application]
        whole = [run["baseline"]["accuracy"] for run in runs]
        about = {"application": APPLICATIONS[application]}
        rows.append(about | {"state": "without a failure", "failures": 0, "n": len(whole), **spread(whole, "accuracy")})
        for strategy, often in dict.fromkeys((arm["strategy"], arm["often"]) for run in runs for arm in run["arms"]):
            pairs = [(arm, run["baseline"]) for run in runs for arm in run["arms"] if (arm["strategy"], arm["often"]) == (strategy, often)]
            reached = [arm["accuracy"] for arm, _ in pairs]
            row = about | {"state": STRATEGIES[strategy], "failures": pairs[0][0]["failures"], "n": len(pairs), **spread(reached, "accuracy")}
            rows.append(row | against(reached, [baseline["accuracy"] for _, baseline in pairs]) | {"exact": sum(arm["same"] for arm, _ in pairs)})
    columns = (
        APPLICATION,
        Column("state", "recovery"),
        Column("failures", "failures in the run", "count"),
        Column("n", "seeds", "count"),
        *spread_columns("accuracy", "final held-out accuracy", "share"),
        *AGAINST_COLUMNS,
        Column("exact", "end bit for bit where the run without does", "count"),
    )
    note = (
        "Failures at the middle of the shares tried, under lossy forward with the middle number of survivors; from the next mini-batch on all "
        "workers are there again. Once: in the middle of the run; repeatedly: at equal distances."
    )
    return Table("long-run", "Final accuracy of runs that went on after the recovery", columns, tuple(rows), note)


def dormant(tally: Counts) -> Table:
    found = tally.dormant
    words = {
        "all": "a mini-batch of four averages, everybody active",
        "dormant": "the same, one rank dormant for two of them",
        "leave": "a group made anew among those who are left",
        "return": "a group made anew among all",
    }
    rows = [{"what": text, "n": len(found["seconds"][key]), **spread(found["seconds"][key], "took")} for key, text in words.items()] if found else []
    columns = (Column("what", "what"), Column("n", "times", "count"), *spread_columns("took", "took", "seconds"))
    note = (
        "Real processes over gloo on this machine, as rank 0 sees it. To leave or to come back a dormant rank says so with its next contribution: "
        "no call is made."
    )
    return Table("dormant", "A worker leaves and comes back within a mini-batch", columns, tuple(rows), note)


def lost_samples(tally: Counts) -> Table:
    """How much of a mini-batch's influence each strategy loses."""
    rows = []
    for application in tally.applications:
        for cell in (each for each in tally.plan() if not each.flipped):
            found = [each for case in tally.cases if case.application == application for each in case.cells(cell)]
            row = {"application": APPLICATIONS[application], "strategy": STRATEGIES[cell.strategy], "percent": cell.percent}
            row |= {"survivors": cell.survivors or None, "n": len(found)}
            rows += [row | {key: found[0][key] for key in ("lost", "repeated")}] if found else []
    columns = (
        APPLICATION,
        Column("strategy", "strategy"),
        Column("percent", "failure at, % of the gradients", "count"),
        Column("survivors", "survivors", "count"),
        Column("n", "cells checked", "count"),
        Column("lost", "of all (sample, layer) pairs without influence", "share"),
        Column("repeated", "with twice their influence", "share"),
    )
    note = "In every cell what was applied and what the record of lost samples names add up, sample by sample and layer by layer: see the gates."
    return Table("ledger", "The record of lost samples", columns, tuple(rows), note)
