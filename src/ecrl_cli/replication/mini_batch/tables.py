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
    SECONDS,
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
from ecrl_cli.studies.frame.result import ResultTable
from ecrl_cli.studies.frame.tables import Cells, grouped, item, items, table

STRUCK = (
    item("strategy", "strategy"),
    item("percent", "failure at, % of the gradients", "count"),
)
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
        item("state", "state"),
        item("n", "seeds", "count"),
        *spread_columns("accuracy", "held-out accuracy", "share"),
        *AGAINST_COLUMNS,
        *spread_columns("slowdown", "slowdown to Baseline", "number"),
        *items("share", lost="lost (sample, layer) pairs", repeated="repeated ones"),
    )
    note = (
        "Accuracy after the mini-batch of the scenario, intervals over the seeds. F-25%: a quarter"
        " of the gradient tensors, in backward order, had been averaged among all workers and"
        " applied. Slowdown: processor time of the mini-batch under the strategy by that without"
        " the failure, all strategies in turn; of a checkpoint restart the replay alone."
    )
    title = "Accuracy and overhead after the failed mini-batch, by strategy"
    return table("accuracy", title, columns, rows, note)


def _rows(counts: MiniBatchCounts, case: ScenarioRuns) -> list[dict[str, Any]]:
    baselines, seconds = case.baselines("accuracy"), case.baselines("seconds")
    before = [run["before"]["accuracy"] for run in case.runs]

    def row(state: str, reached: list[float], **more: Any) -> dict[str, Any]:
        named = {"state": state, "n": len(reached)}
        return case.about | named | spread(reached, "accuracy") | more

    rows = [
        row("Before", before, **against(before, baselines)),
        row("Baseline", baselines, slowdown=1.0),
    ]
    for cell in counts.plan():
        if cell.flipped or not case.whole(cell):
            continue
        runs = case.cells(cell)
        reached = [run["accuracy"] for run in runs]
        took = slowdown([run["seconds"] for run in runs], seconds)
        lost = {key: runs[0][key] for key in ("lost", "repeated")}
        rows.append(row(label(cell), reached, **against(reached, baselines), **took, **lost))
    return rows


def scenarios(counts: MiniBatchCounts) -> ResultTable:
    """The mini-batch used for each published one, and the model's accuracy there."""
    rows = []
    for case in counts.cases:
        size, workers = case.size, counts.config.replicas
        epoch = (case.mini_batch - 1) // size.per_epoch(workers)
        rows.append(
            case.about
            | {
                "published_epoch": _EPOCHS[case.published],
                "epoch": epoch,
                "of": size.mini_batches(workers),
            }
            | spread([run["before"]["accuracy"] for run in case.runs], "before")
            | spread(case.baselines("accuracy"), "baseline")
        )
    columns = (
        APPLICATION,
        PUBLISHED_AT,
        item("published_epoch", "published epoch", "count"),
        HERE,
        *items("count", epoch="its epoch", of="of"),
        *spread_columns("before", "accuracy before", "share"),
        *spread_columns("baseline", "accuracy after it without a failure", "share"),
    )
    note = (
        "NT3's 500th mini-batch lies in epoch 8 with 56 mini-batches an epoch (1,120 / 20), as the"
        " published text says; with the 55 of the published table it would be the 9th."
    )
    return table("scenarios", "The scenarios", columns, rows, note)


_EPOCHS = {200: 0, 4_000: 10, 10_000: 25, 25_000: 64, 10: 0, 250: 4, 500: 8}


def corrections(counts: MiniBatchCounts) -> ResultTable:
    """The effect of each correction: the same cells and seeds with and without it."""
    cells = dict.fromkeys(
        _without_numbers(cell)
        for name in CORRECTIONS
        for cell in counts.plan()
        if cell.flipped == name
    )
    rows = [
        _both(counts, application, cell) for application in counts.applications for cell in cells
    ]
    columns = (
        APPLICATION,
        item("correction", "correction"),
        *STRUCK,
        *items(
            "count",
            cells="cells, over seeds and scenarios",
            changed="of which end in another state",
        ),
        *items(
            "share",
            corrected="mean accuracy, corrected",
            other="mean accuracy, the other way",
        ),
        *spread_columns("difference", "the other way less corrected, in points", "change"),
    )
    note = (
        "Pairs of one run. Plain SGD does not move under a gradient of zero, and a network without"
        " BatchNorm has no such buffers: there nothing changes."
    )
    return table("corrections", "What difference the corrections make", columns, rows, note)


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
    return {
        "application": counts.named(application),
        "correction": CORRECTED[cell.flipped],
        "strategy": STRATEGIES[cell.strategy],
        "percent": cell.percent,
        "cells": len(pairs),
        "changed": sum(one["digest"] != other["digest"] for one, other in pairs),
        "corrected": summary(corrected).mean,
        "other": summary(published).mean,
        **against(published, corrected),
    }


def model(counts: MiniBatchCounts) -> ResultTable:
    """Predicted from the measured parts of the same scenario and run, over all scenarios."""
    rows = []
    for parts in measured(counts.records):
        tried = grouped(
            counts.tried(parts.application), lambda pair: (pair[1]["strategy"], pair[1]["percent"])
        )
        for (strategy, percent), pairs in tried.items():
            row = {
                "application": counts.named(parts.application),
                "strategy": STRATEGIES[strategy],
                "percent": percent,
            }
            rows.append(row | _beside(pairs, parts.restart_s if strategy in STARTS else 0.0))
    columns = (
        APPLICATION,
        *STRUCK,
        item("n", "cells, over seeds and scenarios", "count"),
        *spread_columns("measured", "measured", "seconds"),
        item("predicted", "predicted", "seconds"),
        *spread_columns("error", "prediction against measured", "change"),
        item("overhead", "overhead of a failure, with the restart", "seconds"),
        item("times", "in mini-batches", "number"),
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
    return table("model", "The performance model beside what was measured", columns, rows, note)


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
    overhead = summary(seconds).mean - summary(whole).mean + restart_s
    return {
        "n": len(pairs),
        **spread(seconds, "measured"),
        "predicted": summary(predicted).mean,
        "error": ratio_of_means(predicted, seconds) - 1,
        "error_low": None if low is None else low - 1,
        "error_high": None if high is None else high - 1,
        "overhead": overhead,
        "times": overhead / summary(whole).mean,
    }


def outliers(counts: MiniBatchCounts) -> ResultTable:
    """Distance of the survivors' average from the full one, by their number and by whether the
    outlier is among the dead.
    """
    rows = []
    for application in counts.applications:
        lossy = [
            pair for pair in counts.tried(application) if pair[1]["strategy"] == "lossy_forward"
        ]
        by = grouped(lossy, lambda pair: (pair[1]["survivors"], pair[1]["outlier_lost"]))
        for (number, lost), group in sorted(by.items()):
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
        item("survivors", "survivors", "count"),
        item("outlier", "most unusual worker"),
        item("n", "cells, over seeds, scenarios and shares", "count"),
        *spread_columns("off", "survivors' average from everybody's, by its length", "number"),
        *spread_columns("away", "distance to Baseline in accuracy, in points", "change"),
    )
    note = (
        "Over the gradients computed after the failure. The most unusual worker: the one whose"
        " gradients lie farthest from the average of all. Cells of one run are not independent: the"
        " intervals are too narrow."
    )
    return table("outliers", "What lossy forward leaves out of the average", columns, rows, note)


def _beside_published(key: str, text: str, kind: str) -> tuple[Cells, Cells]:
    return item(key, text, kind), item(f"published_{key}", "published", kind)


def properties(counts: MiniBatchCounts) -> ResultTable:
    """Published Table I."""
    columns = (
        APPLICATION,
        item("bytes", "model size", "bytes"),
        item("published_size", "published model size"),
        item("layers", "layers (parameter tensors)", "count"),
        item("published_layers", "published layers", "count"),
        *_beside_published("batch", "mini-batch per worker", "count"),
        *_beside_published("per_epoch", "mini-batches per epoch", "count"),
        *_beside_published("epochs", "epochs", "count"),
        *_beside_published("mini_batch_s", "mean mini-batch", "seconds"),
        *_beside_published("init_s", "initialisation", "seconds"),
        *_beside_published("checkpoint_s", "checkpoint", "seconds"),
        *_beside_published("restart_s", "restart", "seconds"),
    )
    note = (
        "Published Table I beside ours. Its sizes and numbers of layers look swapped between the"
        " two: its text has ResNet-50 of many small layers and NT3 of few huge ones, and the 24"
        " million parameters of the former are 91 MiB, the 155 million of the latter 591 MiB."
        " Initialisation: data, model, optimizer and a first pass, in a process that has its"
        " libraries; restart: that, and reading the checkpoint. A checkpoint counts until it is"
        " durable."
    )
    rows = [_property(counts, parts) for parts in measured(counts.records)]
    title = "The applications and what does not depend on the scenario"
    return table("properties", title, columns, rows, note)


def _property(counts: MiniBatchCounts, parts: MeasuredParts) -> dict[str, Any]:
    size, printed = counts.of(parts.application)[0].size, asdict(PUBLISHED[parts.application])
    return {
        **{f"published_{key}": value for key, value in printed.items()},
        "application": counts.named(parts.application),
        "bytes": parts.model_bytes,
        "layers": parts.layers,
        "batch": size.batch,
        "per_epoch": parts.mini_batches_per_epoch,
        "epochs": size.epochs,
        **{key: getattr(parts, key) for key in SECONDS if key != "load_s"},
        "restart_s": parts.restart_s,
    }


def replay(counts: MiniBatchCounts) -> ResultTable:
    """Published Figure 2c."""
    rows = [_replay(counts, case) for case in counts.cases if _restarted(case)]
    columns = (
        APPLICATION,
        PUBLISHED_AT,
        HERE,
        item("replayed", "mini-batches replayed", "count"),
        item("per_epoch", "of an epoch's", "count"),
        *spread_columns("measured", "replay", "seconds"),
        item("predicted", "predicted", "seconds"),
        item("error", "prediction against measured", "change"),
        item("epoch", "whole epoch", "seconds"),
    )
    note = (
        "Processor time, as if the workers computed side by side. Predicted: mini-batches since the"
        " checkpoint times the mean mini-batch of the runs without failures. Expected of a random"
        " failure: half an epoch."
    )
    return table(
        "replay", "Replay after a restart from the epoch's checkpoint", columns, rows, note
    )


def _restarted(case: ScenarioRuns) -> list[dict[str, Any]]:
    return [
        each
        for run in case.runs
        for each in run["cells"]
        if each["strategy"] == "checkpoint_restart"
    ]


def _replay(counts: MiniBatchCounts, case: ScenarioRuns) -> dict[str, Any]:
    cells = _restarted(case)
    parts = next(p for p in measured(counts.records) if p.application == case.application)
    seconds = [cell["seconds"] for cell in cells]
    predicted = cells[0]["replayed"] * parts.mini_batch_s
    return case.about | {
        "replayed": cells[0]["replayed"],
        "per_epoch": parts.mini_batches_per_epoch,
        "predicted": predicted,
        "epoch": parts.mini_batches_per_epoch * parts.mini_batch_s,
        **spread(seconds, "measured"),
        "error": predicted / summary(seconds).mean - 1,
    }


def long_run(counts: MiniBatchCounts) -> ResultTable:
    """Results of the runs trained to the end."""
    rows = []
    for application, longs in grouped(counts.longs, lambda r: r.facts["application"]).items():
        runs = [record.found for record in longs]
        about = {"application": counts.named(application)}
        whole = [run["baseline"]["accuracy"] for run in runs]
        rows.append(about | _reached("without a failure", 0, whole))
        arms = [(arm, run["baseline"]) for run in runs for arm in run["arms"]]
        by = grouped(arms, lambda pair: (pair[0]["strategy"], pair[0]["often"]))
        for (strategy, _), pairs in by.items():
            reached = [arm["accuracy"] for arm, _ in pairs]
            beside = against(reached, [baseline["accuracy"] for _, baseline in pairs])
            exact = {"exact": sum(arm["same"] for arm, _ in pairs)}
            row = _reached(STRATEGIES[strategy], pairs[0][0]["failures"], reached)
            rows.append(about | row | beside | exact)
    columns = (
        APPLICATION,
        item("state", "recovery"),
        item("failures", "failures in the run", "count"),
        item("n", "seeds", "count"),
        *spread_columns("accuracy", "final held-out accuracy", "share"),
        *AGAINST_COLUMNS,
        item("exact", "end bit for bit where the run without does", "count"),
    )
    note = (
        "Failures at the middle of the shares tried, under lossy forward with the middle number of"
        " survivors; from the next mini-batch on all workers are there again. Once: in the middle"
        " of the run; repeatedly: at equal distances."
    )
    title = "Final accuracy of runs that went on after the recovery"
    return table("long-run", title, columns, rows, note)


def _reached(state: str, failures: int, accuracies: list[float]) -> dict[str, Any]:
    about = {"state": state, "failures": failures, "n": len(accuracies)}
    return about | spread(accuracies, "accuracy")


def dormant(counts: MiniBatchCounts) -> ResultTable:
    words = {
        "all": "a mini-batch of four averages, everybody active",
        "dormant": "the same, one rank dormant for two of them",
        "leave": "a group made anew among those who are left",
        "return": "a group made anew among all, which gives the returned rank what it missed",
    }
    seconds = counts.dormant["seconds"] if counts.dormant else {}
    rows = [
        {"what": words[key], "n": len(seconds[key]), **spread(seconds[key], "took")}
        for key in (words if seconds else ())
    ]
    columns = (
        item("what", "what"),
        item("n", "times", "count"),
        *spread_columns("took", "took", "seconds"),
    )
    note = (
        "Real processes over gloo on this machine, as rank 0 sees it. To leave or to come back a"
        " dormant rank says so with its next contribution: no call is made."
    )
    return table(
        "dormant", "A worker leaves and comes back within a mini-batch", columns, rows, note
    )


def lost_samples(counts: MiniBatchCounts) -> ResultTable:
    """How much of a mini-batch's influence each strategy loses."""
    rows = []
    for application in counts.applications:
        for cell in (each for each in counts.plan() if not each.flipped):
            runs = [run for case in counts.of(application) for run in case.cells(cell)]
            if runs:
                named = {
                    "application": counts.named(application),
                    "strategy": STRATEGIES[cell.strategy],
                    "percent": cell.percent,
                    "survivors": cell.survivors or None,
                    "n": len(runs),
                }
                rows.append(named | {key: runs[0][key] for key in ("lost", "repeated")})
    columns = (
        APPLICATION,
        *STRUCK,
        item("survivors", "survivors", "count"),
        item("n", "cells checked", "count"),
        item("lost", "of all (sample, layer) pairs without influence", "share"),
        item("repeated", "with twice their influence", "share"),
    )
    note = (
        "In every cell what was applied and what the record of lost samples names add up, sample by"
        " sample and layer by layer: see the gates."
    )
    return table("ledger", "The record of lost samples", columns, rows, note)


ORDER = (
    accuracy,
    scenarios,
    properties,
    replay,
    corrections,
    model,
    outliers,
    long_run,
    dormant,
    lost_samples,
)
