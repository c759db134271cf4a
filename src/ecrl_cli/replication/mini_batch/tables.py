"""The tables: accuracy and overhead of every cell beside the published values, the scenarios, the
corrections, the performance model beside what was measured; the applications (published Table I),
the replay, the long runs, the dormant workers and the lost samples.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ecrl_cli.metrics.statistics import ratio_interval, ratio_of_means, summary
from ecrl_cli.replication.applications import PUBLISHED
from ecrl_cli.replication.mini_batch.cells import CORRECTIONS, ScenarioTrial
from ecrl_cli.replication.mini_batch.counts import (
    AGAINST_COLUMNS,
    APPLICATION,
    HERE,
    PUBLISHED_AT,
    STARTS,
    STRATEGIES,
    MeasuredParts,
    MiniBatch,
    MiniBatchCounts,
    Run,
    ScenarioRuns,
    against,
    label,
    measured,
    predicted_s,
    slowdown,
    spread,
    spread_columns,
)
from ecrl_cli.studies.frame.result import ResultColumn, ResultTable

CORRECTED = {
    "mask": "the update is masked; published: gradients of zero",
    "buffers": "a rollback takes BatchNorm's buffers back; published: forward is read-only",
    "division": "survivors divide by their number; naive: by the number of all",
}


def accuracy(counts: MiniBatchCounts) -> ResultTable:
    """Published figures 3 and 4 as a table: the cells as configured, Before and Baseline first."""
    rows = [row for case in counts.cases for row in _rows(counts, case)]
    columns = (
        APPLICATION,
        PUBLISHED_AT,
        HERE,
        ResultColumn("state", "state"),
        ResultColumn("n", "seeds", "count"),
        *spread_columns("accuracy", "held-out accuracy", "share"),
        *AGAINST_COLUMNS,
        *spread_columns("slowdown", "slowdown to Baseline", "number"),
        ResultColumn("lost", "lost (sample, layer) pairs", "share"),
        ResultColumn("repeated", "repeated ones", "share"),
    )
    note = (
        "Accuracy after the mini-batch of the scenario, intervals over the seeds. F-25%: a quarter"
        " of the gradient tensors, in backward order, had been averaged among all workers and"
        " applied. Slowdown: processor time of the mini-batch under the strategy by that without"
        " the failure, all strategies in turn; of a checkpoint restart the replay alone."
    )
    return ResultTable(
        "accuracy",
        "Accuracy and overhead after the failed mini-batch, by strategy",
        columns,
        tuple(rows),
        note,
    )


def _rows(counts: MiniBatchCounts, case: ScenarioRuns) -> list[dict[str, Any]]:
    about = case.about
    baselines, seconds = case.baselines("accuracy"), case.baselines("seconds")
    before = [run["before"]["accuracy"] for run in case.runs]
    rows = [
        about
        | {
            "state": "Before",
            "n": len(before),
            **spread(before, "accuracy"),
            **against(before, baselines),
        }
    ]
    rows.append(
        about
        | {
            "state": "Baseline",
            "n": len(before),
            **spread(baselines, "accuracy"),
            "slowdown": 1.0,
        }
    )
    for cell in (each for each in counts.plan() if not each.flipped and case.whole(each)):
        found = case.cells(cell)
        reached = [each["accuracy"] for each in found]
        row = about | {
            "state": label(cell),
            "n": len(found),
            **spread(reached, "accuracy"),
            **against(reached, baselines),
        }
        row |= slowdown([each["seconds"] for each in found], seconds)
        rows.append(row | {key: found[0][key] for key in ("lost", "repeated")})
    return rows


def scenarios(counts: MiniBatchCounts) -> ResultTable:
    """The mini-batch used for each published one, and the model's accuracy there."""
    rows = []
    for case in counts.cases:
        size, workers = case.size, counts.config.replicas
        epoch = (case.mini_batch - 1) // size.per_epoch(workers)
        row = case.about | {
            "published_epoch": _EPOCHS[case.published],
            "epoch": epoch,
            "of": size.mini_batches(workers),
        }
        rows.append(
            row
            | spread([run["before"]["accuracy"] for run in case.runs], "before")
            | spread(case.baselines("accuracy"), "baseline")
        )
    columns = (
        APPLICATION,
        PUBLISHED_AT,
        ResultColumn("published_epoch", "published epoch", "count"),
        HERE,
        ResultColumn("epoch", "its epoch", "count"),
        ResultColumn("of", "of", "count"),
        *spread_columns("before", "accuracy before", "share"),
        *spread_columns("baseline", "accuracy after it without a failure", "share"),
    )
    note = (
        "NT3's 500th mini-batch lies in epoch 8 with 56 mini-batches an epoch (1,120 / 20), as the"
        " published text says; with the 55 of the published table it would be the 9th."
    )
    return ResultTable("scenarios", "The scenarios", columns, tuple(rows), note)


_EPOCHS = {200: 0, 4_000: 10, 10_000: 25, 25_000: 64, 10: 0, 250: 4, 500: 8}


def corrections(counts: MiniBatchCounts) -> ResultTable:
    """The effect of each correction: the same cells and seeds with and without it."""
    rows = []
    for application in counts.applications:
        for name in CORRECTIONS:
            for cell in dict.fromkeys(
                _without_numbers(each) for each in counts.plan() if each.flipped == name
            ):
                rows.append(
                    {
                        "application": counts.named(application),
                        "correction": CORRECTED[name],
                        **_both(counts, application, cell),
                    }
                )
    columns = (
        APPLICATION,
        ResultColumn("correction", "correction"),
        ResultColumn("strategy", "strategy"),
        ResultColumn("percent", "failure at, % of the gradients", "count"),
        ResultColumn("cells", "cells, over seeds and scenarios", "count"),
        ResultColumn("changed", "of which end in another state", "count"),
        ResultColumn("corrected", "mean accuracy, corrected", "share"),
        ResultColumn("other", "mean accuracy, the other way", "share"),
        *spread_columns("difference", "the other way less corrected, in points", "change"),
    )
    note = (
        "Pairs of one run. Plain SGD does not move under a gradient of zero, and a network without"
        " BatchNorm has no such buffers: there nothing changes."
    )
    return ResultTable(
        "corrections", "What difference the corrections make", columns, tuple(rows), note
    )


def _without_numbers(cell: ScenarioTrial) -> ScenarioTrial:
    return ScenarioTrial(cell.strategy, cell.percent, 0, cell.flipped)


def _both(counts: MiniBatchCounts, application: str, cell: ScenarioTrial) -> dict[str, Any]:
    """Pairs of cells without and with the correction; `corrected` is the arm that has it, whichever
    of the two is configured.
    """
    pairs = []
    for case in counts.of(application):
        for other in (each for each in counts.plan() if _without_numbers(each) == cell):
            usual = ScenarioTrial(other.strategy, other.percent, other.survivors)
            pairs += case.pairs(usual, other)
    if not getattr(counts.config, cell.flipped):
        pairs = [(other, usual) for usual, other in pairs]
    corrected, published = ([each[side]["accuracy"] for each in pairs] for side in (0, 1))
    found = against(published, corrected)
    row = {"strategy": STRATEGIES[cell.strategy], "percent": cell.percent, "cells": len(pairs)}
    row |= {"changed": sum(one["digest"] != other["digest"] for one, other in pairs)}
    row |= {"corrected": spread(corrected, "x")["x"], "other": spread(published, "x")["x"]}
    return row | {key: found[key] for key in ("difference", "difference_low", "difference_high")}


def model(counts: MiniBatchCounts) -> ResultTable:
    """Predicted from the measured parts of the same scenario and run, over all scenarios."""
    rows = []
    for parts in measured(counts.records):
        tried = list(counts.tried(parts.application))
        for strategy, percent in dict.fromkeys(
            (found["strategy"], found["percent"]) for _, found in tried
        ):
            pairs = [
                (run, found)
                for run, found in tried
                if (found["strategy"], found["percent"]) == (strategy, percent)
            ]
            row: dict[str, Any] = {
                "application": counts.named(parts.application),
                "strategy": STRATEGIES[strategy],
                "percent": percent,
            }
            rows.append(row | _beside(pairs, parts.restart_s if strategy in STARTS else 0.0))
    columns = (
        APPLICATION,
        ResultColumn("strategy", "strategy"),
        ResultColumn("percent", "failure at, % of the gradients", "count"),
        ResultColumn("n", "cells, over seeds and scenarios", "count"),
        *spread_columns("measured", "measured", "seconds"),
        ResultColumn("predicted", "predicted", "seconds"),
        *spread_columns("error", "prediction against measured", "change"),
        ResultColumn("overhead", "overhead of a failure, with the restart", "seconds"),
        ResultColumn("times", "in mini-batches", "number"),
    )
    note = (
        "Predicted from three parts, measured in turn with the strategies: the mini-batch without a"
        " failure, its forward pass, a copy of the state. Behind forward every gradient tensor"
        " counts as equally long. Rollbacks: what was begun, the copies, the mini-batch again;"
        " lossy forward: the mini-batch; skip: what was begun; a restart: the mini-batches since"
        " the checkpoint. Overhead: measured, less the mini-batch, plus the restart of the table"
        " above where processes start anew; lossy forward and skip go on without newcomers. Without"
        " communication."
    )
    return ResultTable(
        "model", "The performance model beside what was measured", columns, tuple(rows), note
    )


def _beside(pairs: list[tuple[Run, Run]], restart_s: float) -> dict[str, Any]:
    whole = [run["baseline"]["seconds"] for run, _ in pairs]
    seconds = [found["seconds"] for _, found in pairs]
    predicted = [
        predicted_s(
            found["strategy"],
            found["percent"],
            found["replayed"],
            MiniBatch(once, run["parts"]["forward"], run["parts"]["copy"]),
        )
        for once, (run, found) in zip(whole, pairs, strict=True)
    ]
    low, high = ratio_interval(predicted, seconds) or (None, None)
    error: dict[str, float | None] = {"error": ratio_of_means(predicted, seconds) - 1}
    error |= {
        "error_low": None if low is None else low - 1,
        "error_high": None if high is None else high - 1,
    }
    overhead = summary(seconds).mean - summary(whole).mean + restart_s
    row = {
        "n": len(pairs),
        **spread(seconds, "measured"),
        "predicted": summary(predicted).mean,
        **error,
    }
    return row | {"overhead": overhead, "times": overhead / summary(whole).mean}


def outliers(counts: MiniBatchCounts) -> ResultTable:
    """Distance of the survivors' average from the full one, by their number and by whether the
    outlier is among the dead.
    """
    rows = []
    for application in counts.applications:
        lossy = [
            each for each in counts.tried(application) if each[1]["strategy"] == "lossy_forward"
        ]
        for number, lost in sorted(
            {(found["survivors"], found["outlier_lost"]) for _, found in lossy}
        ):
            group = [
                (run, found)
                for run, found in lossy
                if (found["survivors"], found["outlier_lost"]) == (number, lost)
            ]
            away = [abs(found["accuracy"] - run["baseline"]["accuracy"]) for run, found in group]
            off = [found["off"] for _, found in group if found["off"] is not None]
            row = {
                "application": counts.named(application),
                "survivors": number,
                "outlier": "dead" if lost else "survives",
                "n": len(group),
            }
            rows.append(row | (spread(off, "off") if off else {}) | spread(away, "away"))
    columns = (
        APPLICATION,
        ResultColumn("survivors", "survivors", "count"),
        ResultColumn("outlier", "most unusual worker"),
        ResultColumn("n", "cells, over seeds, scenarios and shares", "count"),
        *spread_columns("off", "survivors' average from everybody's, by its length", "number"),
        *spread_columns("away", "distance to Baseline in accuracy, in points", "change"),
    )
    note = (
        "Over the gradients computed after the failure. The most unusual worker: the one whose"
        " gradients lie farthest from the average of all. Cells of one run are not independent: the"
        " intervals are too narrow."
    )
    return ResultTable(
        "outliers", "What lossy forward leaves out of the average", columns, tuple(rows), note
    )


def properties(counts: MiniBatchCounts) -> ResultTable:
    """Published Table I."""
    rows = [_property(counts, parts) for parts in measured(counts.records)]
    columns = (
        APPLICATION,
        ResultColumn("bytes", "model size", "bytes"),
        ResultColumn("published_size", "published model size"),
        ResultColumn("layers", "layers (parameter tensors)", "count"),
        ResultColumn("published_layers", "published layers", "count"),
        ResultColumn("batch", "mini-batch per worker", "count"),
        ResultColumn("published_batch", "published", "count"),
        ResultColumn("per_epoch", "mini-batches per epoch", "count"),
        ResultColumn("published_per_epoch", "published", "count"),
        ResultColumn("epochs", "epochs", "count"),
        ResultColumn("published_epochs", "published", "count"),
        ResultColumn("mini_batch_s", "mean mini-batch", "seconds"),
        ResultColumn("published_mini_batch_s", "published", "seconds"),
        ResultColumn("init_s", "initialisation", "seconds"),
        ResultColumn("published_init_s", "published", "seconds"),
        ResultColumn("checkpoint_s", "checkpoint", "seconds"),
        ResultColumn("published_checkpoint_s", "published", "seconds"),
        ResultColumn("restart_s", "restart", "seconds"),
        ResultColumn("published_restart_s", "published", "seconds"),
    )
    note = (
        "Published Table I beside ours. Its sizes and numbers of layers look swapped between the"
        " two: its text has ResNet-50 of many small layers and NT3 of few huge ones, and the 24"
        " million parameters of the former are 91 MiB, the 155 million of the latter 591 MiB."
        " Initialisation: data, model, optimizer and a first pass, in a process that has its"
        " libraries; restart: that, and reading the checkpoint. A checkpoint counts until it is"
        " durable."
    )
    return ResultTable(
        "properties",
        "The applications and what does not depend on the scenario",
        columns,
        tuple(rows),
        note,
    )


def _property(counts: MiniBatchCounts, parts: MeasuredParts) -> dict[str, Any]:
    size = counts.of(parts.application)[0].size
    printed = {
        f"published_{key}": value
        for key, value in asdict(PUBLISHED[parts.application]).items()
        if key != "name"
    }
    row: dict[str, Any] = {
        "application": counts.named(parts.application),
        "bytes": parts.model_bytes,
        "layers": parts.layers,
        "batch": size.batch,
    }
    row |= {"per_epoch": parts.mini_batches_per_epoch, "epochs": size.epochs}
    row |= {
        key: getattr(parts, key) for key in ("mini_batch_s", "init_s", "checkpoint_s", "restart_s")
    }
    return row | printed


def replay(counts: MiniBatchCounts) -> ResultTable:
    """Published Figure 2c."""
    rows = [_replay(counts, case) for case in counts.cases if _restarted(case)]
    columns = (
        APPLICATION,
        PUBLISHED_AT,
        HERE,
        ResultColumn("replayed", "mini-batches replayed", "count"),
        ResultColumn("per_epoch", "of an epoch's", "count"),
        *spread_columns("measured", "replay", "seconds"),
        ResultColumn("predicted", "predicted", "seconds"),
        ResultColumn("error", "prediction against measured", "change"),
        ResultColumn("epoch", "whole epoch", "seconds"),
    )
    note = (
        "Processor time, as if the workers computed side by side. Predicted: mini-batches since the"
        " checkpoint times the mean mini-batch of the runs without failures. Expected of a random"
        " failure: half an epoch."
    )
    return ResultTable(
        "replay", "Replay after a restart from the epoch's checkpoint", columns, tuple(rows), note
    )


def _restarted(case: ScenarioRuns) -> list[dict[str, Any]]:
    return [
        each
        for run in case.runs
        for each in run["cells"]
        if each["strategy"] == "checkpoint_restart"
    ]


def _replay(counts: MiniBatchCounts, case: ScenarioRuns) -> dict[str, Any]:
    found, parts = (
        _restarted(case),
        next(each for each in measured(counts.records) if each.application == case.application),
    )
    seconds = [each["seconds"] for each in found]
    predicted = found[0]["replayed"] * parts.mini_batch_s
    row = case.about | {
        "replayed": found[0]["replayed"],
        "per_epoch": parts.mini_batches_per_epoch,
        "predicted": predicted,
        "epoch": parts.mini_batches_per_epoch * parts.mini_batch_s,
    }
    return row | spread(seconds, "measured") | {"error": predicted / summary(seconds).mean - 1}


def long_run(counts: MiniBatchCounts) -> ResultTable:
    """Results of the runs trained to the end."""
    rows = []
    for application in dict.fromkeys(record.facts["application"] for record in counts.longs):
        runs = [
            record.found for record in counts.longs if record.facts["application"] == application
        ]
        whole = [run["baseline"]["accuracy"] for run in runs]
        about = {"application": counts.named(application)}
        rows.append(
            about
            | {
                "state": "without a failure",
                "failures": 0,
                "n": len(whole),
                **spread(whole, "accuracy"),
            }
        )
        for strategy, often in dict.fromkeys(
            (arm["strategy"], arm["often"]) for run in runs for arm in run["arms"]
        ):
            pairs = [
                (arm, run["baseline"])
                for run in runs
                for arm in run["arms"]
                if (arm["strategy"], arm["often"]) == (strategy, often)
            ]
            reached = [arm["accuracy"] for arm, _ in pairs]
            row = about | {
                "state": STRATEGIES[strategy],
                "failures": pairs[0][0]["failures"],
                "n": len(pairs),
                **spread(reached, "accuracy"),
            }
            rows.append(
                row
                | against(reached, [baseline["accuracy"] for _, baseline in pairs])
                | {"exact": sum(arm["same"] for arm, _ in pairs)}
            )
    columns = (
        APPLICATION,
        ResultColumn("state", "recovery"),
        ResultColumn("failures", "failures in the run", "count"),
        ResultColumn("n", "seeds", "count"),
        *spread_columns("accuracy", "final held-out accuracy", "share"),
        *AGAINST_COLUMNS,
        ResultColumn("exact", "end bit for bit where the run without does", "count"),
    )
    note = (
        "Failures at the middle of the shares tried, under lossy forward with the middle number of"
        " survivors; from the next mini-batch on all workers are there again. Once: in the middle"
        " of the run; repeatedly: at equal distances."
    )
    return ResultTable(
        "long-run",
        "Final accuracy of runs that went on after the recovery",
        columns,
        tuple(rows),
        note,
    )


def dormant(counts: MiniBatchCounts) -> ResultTable:
    found = counts.dormant
    words = {
        "all": "a mini-batch of four averages, everybody active",
        "dormant": "the same, one rank dormant for two of them",
        "leave": "a group made anew among those who are left",
        "return": "a group made anew among all, which gives the returned rank what it missed",
    }
    rows = (
        [
            {"what": text, "n": len(found["seconds"][key]), **spread(found["seconds"][key], "took")}
            for key, text in words.items()
        ]
        if found
        else []
    )
    columns = (
        ResultColumn("what", "what"),
        ResultColumn("n", "times", "count"),
        *spread_columns("took", "took", "seconds"),
    )
    note = (
        "Real processes over gloo on this machine, as rank 0 sees it. To leave or to come back a"
        " dormant rank says so with its next contribution: no call is made."
    )
    return ResultTable(
        "dormant", "A worker leaves and comes back within a mini-batch", columns, tuple(rows), note
    )


def lost_samples(counts: MiniBatchCounts) -> ResultTable:
    """How much of a mini-batch's influence each strategy loses."""
    rows = []
    for application in counts.applications:
        for cell in (each for each in counts.plan() if not each.flipped):
            found = [each for case in counts.of(application) for each in case.cells(cell)]
            row = {
                "application": counts.named(application),
                "strategy": STRATEGIES[cell.strategy],
                "percent": cell.percent,
            }
            row |= {"survivors": cell.survivors or None, "n": len(found)}
            rows += [row | {key: found[0][key] for key in ("lost", "repeated")}] if found else []
    columns = (
        APPLICATION,
        ResultColumn("strategy", "strategy"),
        ResultColumn("percent", "failure at, % of the gradients", "count"),
        ResultColumn("survivors", "survivors", "count"),
        ResultColumn("n", "cells checked", "count"),
        ResultColumn("lost", "of all (sample, layer) pairs without influence", "share"),
        ResultColumn("repeated", "with twice their influence", "share"),
    )
    note = (
        "In every cell what was applied and what the record of lost samples names add up, sample by"
        " sample and layer by layer: see the gates."
    )
    return ResultTable("ledger", "The record of lost samples", columns, tuple(rows), note)
