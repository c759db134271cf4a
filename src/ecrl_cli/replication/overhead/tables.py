"""The tables of the model (parts, best intervals, overheads at scale) and of its validation: closed
forms, the published claim, recorded runs.
"""

from __future__ import annotations

import math

from ecrl_cli.replication.overhead import closed_forms
from ecrl_cli.replication.overhead.closed_forms import check_row
from ecrl_cli.replication.overhead.experiments import HOPELESS, PAIRS
from ecrl_cli.replication.overhead.record_index import RecordIndex, Row, RunTimings, decided
from ecrl_cli.replication.overhead.strategies import (
    BY_NAME,
    NAMES,
    PUBLISHED,
    STRATEGIES,
    Loss,
    Parts,
    StrategyModel,
    expected_loss,
)
from ecrl_cli.studies.frame.result import ResultColumn, ResultTable

# The mini-batch of each application at which the published study injects the failure.
SCENARIOS = {"ResNet-50": (200, 4000, 10_000, 25_000), "CANDLE-NT3": (10, 250, 500)}


def at_scale(index: RecordIndex) -> ResultTable:
    """The main table: every strategy at the largest size, over the MTBF."""
    columns = [
        ResultColumn("model", "model"),
        ResultColumn("strategy", "strategy"),
        ResultColumn("fatal", "fatal failures"),
        ResultColumn("samples", "mini-batches lost for good", "number"),
    ]
    columns += [
        ResultColumn(f"at_{minutes}", f"overhead, MTBF {duration(minutes)}", "share")
        for minutes in index.config.mtbf_min
    ]
    rows = dict[tuple[str, ...], Row]()
    for job in index.jobs():
        if job["workers"] == index.most:
            key = (job["model"], job["strategy"], fatal(job))
            row = rows.setdefault(
                key,
                dict(zip(("model", "strategy", "fatal"), key, strict=True))
                | {"samples": job["samples"]},
            )
            row[f"at_{job['minutes']}"] = job["mean"]
    of = (
        f"of {index.config.reference_workers} workers"
        if index.config.reference_workers
        else "of any size"
    )
    note = (
        f"Simulated wall time over work, less one, at {index.most} workers; the MTBF is that of a"
        f" system {of}. Fatal failures leave no state to go on from, so that strategies without"
        " rollback need checkpoints too. Lost for good: mini-batches whose influence is missing,"
        f" per failure. Nothing: more than {HOPELESS} times the work, not simulated. Intervals:"
        " table scale."
    )
    return ResultTable(
        "overheads",
        f"What each strategy costs at {index.most} workers",
        tuple(columns),
        tuple(rows.values()),
        note,
    )


def duration(minutes: int) -> str:
    return f"{minutes} min" if minutes % 60 else f"{minutes // 60} h"


def fatal(row: Row) -> str:
    return "all roll back" if row["fatal_percent"] is None else f"{row['fatal_percent']}%"


def per_failure(index: RecordIndex) -> ResultTable:
    """Expected seconds of each part of a failure."""
    columns = (
        ResultColumn("model", "model"),
        ResultColumn("strategy", "strategy"),
        *(ResultColumn(name, name, "seconds") for name in NAMES),
        ResultColumn("total", "per failure", "seconds"),
        ResultColumn("checkpoint", "per checkpoint", "seconds"),
        ResultColumn("published", "per failure by the published rule", "seconds"),
    )
    # the same failure under another interval gives no new row
    strategies = [
        strategy for strategy in STRATEGIES if strategy.name != "checkpoint_restart, every epoch"
    ]
    rows = tuple(
        _failure_row(index, model, parts, strategy)
        for model, parts in index.models.items()
        for strategy in strategies
    )
    note = (
        f"{index.least} workers, {index.config.casualties} of them lost, half an epoch (or half the"
        " interval given) since the checkpoint, half a mini-batch done. By the published rule:"
        " initialization, restart and the replay, of a whole mini-batch under immediate rollback;"
        " nothing under lossy forward."
    )
    return ResultTable(
        "per-failure", "What a failure costs, part by part (expected)", columns, rows, note
    )


def _failure_row(index: RecordIndex, model: str, parts: Parts, strategy: StrategyModel) -> Row:
    costs = strategy.costs(parts, index.scenario(index.least), expected_loss(parts, parts.every))
    row: Row = {
        "model": model,
        "strategy": strategy.name,
        **{name: costs.get(name) for name in NAMES},
        "total": math.fsum(costs.values()),
    }
    row["checkpoint"] = (
        parts.checkpoint if strategy.rolls_back else parts.snapshot if strategy.snapshots else None
    )
    return row | {"published": published(strategy.name, parts, parts.every / 2)}


def published(strategy: str, parts: Parts, since: float) -> float | None:
    """The published cost rule (sections IV-C and E)."""
    return {
        "checkpoint_restart": parts.start + since * parts.mini_batch,
        "immediate_rollback": parts.start + parts.mini_batch,
        "lossy_forward": 0.0,
    }.get(strategy)


def scenarios(index: RecordIndex) -> list[ResultTable]:
    """Replay over the epoch (published figure 2c), and end to end."""
    rows = [
        _scenario(model, parts, batch)
        for model, parts in index.models.items()
        for batch in SCENARIOS.get(model, ())
        if model in PUBLISHED
    ]
    columns = (
        ResultColumn("model", "model"),
        ResultColumn("mini_batch", "mini-batch", "count"),
        ResultColumn("epoch", "epoch", "count"),
        ResultColumn("since", "since the checkpoint", "count"),
        ResultColumn("replay", "replay", "seconds"),
        ResultColumn("epoch_s", "epoch", "seconds"),
        *(
            ResultColumn(name, f"{name} (end to end)", "seconds")
            for name in ("checkpoint_restart", "immediate_rollback", "lossy_forward")
        ),
        ResultColumn("times_replay", "replay in mini-batches", "number"),
        ResultColumn("times", "checkpoint_restart over immediate_rollback", "number"),
    )
    note = (
        "By the published rule and Table I; but an epoch of NT3 has 56 mini-batches (1,120 / 20),"
        " where the table has 55: its last scenario lies in epoch 8 (counted from 0), as in the"
        " text."
    )
    return (
        [
            ResultTable(
                "scenarios",
                "The published scenarios: replay against epoch, and each strategy end to end",
                columns,
                tuple(rows),
                note,
            )
        ]
        if rows
        else []
    )


def _scenario(model: str, parts: Parts, batch: int) -> Row:
    since = batch % parts.every
    costs = {
        name: published(name, parts, since)
        for name in ("checkpoint_restart", "immediate_rollback", "lossy_forward")
    }
    row: Row = {
        "model": model,
        "mini_batch": batch,
        "epoch": batch // parts.every,
        "since": since,
        "replay": since * parts.mini_batch,
        **costs,
    }
    again = costs["immediate_rollback"] or math.inf
    return row | {
        "epoch_s": parts.every * parts.mini_batch,
        "times_replay": float(since),
        "times": (costs["checkpoint_restart"] or 0.0) / again,
    }


def optimum(index: RecordIndex) -> ResultTable:
    columns = (
        *_CELL,
        *(
            ResultColumn(key, label, "seconds")
            for key, label in (
                ("young", "Young"),
                ("daly_first", "Daly, first order"),
                ("daly", "Daly"),
                ("exact", "exact"),
            )
        ),
        ResultColumn("simulated", "simulated best", "seconds"),
        ResultColumn("alike_low", "not statistically distinguishable, low", "seconds"),
        ResultColumn("alike_high", "not statistically distinguishable, high", "seconds"),
        *(
            ResultColumn(f"at_{key}", f"overhead at {label}", "share")
            for key, label in (("young", "Young"), ("daly", "Daly"), ("simulated", "the best"))
        ),
    )
    rows = tuple(_optimum_row(row) for row in index.optima())
    note = (
        "checkpoint_restart. Exact: the minimum of Daly's exact wall time. Not statistically"
        " distinguishable: intervals whose paired difference to the best holds zero. Left out:"
        " cells in which a job does not end with one of the intervals tried."
    )
    return ResultTable(
        "optimum", "The best checkpoint interval, by formula and by search", columns, rows, note
    )


def _optimum_row(row: Row) -> Row:
    at = {f"at_{key}": row["at"][key] for key in ("young", "daly", "simulated")}
    kept = {column.key: row[column.key] for column in _CELL} | {
        key: row[key] for key in ("young", "daly_first", "daly", "exact", "simulated")
    }
    return kept | {"alike_low": row["low"], "alike_high": row["high"], **at}


def weibull(index: RecordIndex) -> ResultTable:
    """The same search with failures in bursts (shape < 1) and the same mean gap."""
    plain = {
        (row["model"], row["minutes"]): row
        for row in index.optima()
        if row["workers"] == index.most
    }
    shape = index.config.weibull_shape
    rows = []
    for row in index.optima(shape):
        other = plain.get((row["model"], row["minutes"]))
        found = {column.key: row[column.key] for column in _CELL} | {
            "simulated": row["simulated"],
            "at": row["at"]["daly"],
            "best": row["at"]["simulated"],
        }
        rows.append(
            found
            | (
                {"exponential": other["simulated"], "at_exponential": other["at"]["daly"]}
                if other
                else {}
            )
        )
    columns = (
        *_CELL,
        ResultColumn("exponential", "best interval, exponential", "seconds"),
        ResultColumn("simulated", f"best interval, Weibull {shape:g}", "seconds"),
        ResultColumn("at_exponential", "overhead at Daly, exponential", "share"),
        ResultColumn("at", "overhead at Daly, Weibull", "share"),
        ResultColumn("best", "overhead at the best, Weibull", "share"),
    )
    note = (
        "Gaps between failures of the system, independent and of the same mean; below shape 1 they"
        " come in bursts."
    )
    return ResultTable("weibull", "Failures that come in bursts", columns, tuple(rows), note)


_CELL = (
    ResultColumn("model", "model"),
    ResultColumn("minutes", "MTBF, minutes", "count"),
    ResultColumn("workers", "workers", "count"),
    ResultColumn("mtbf", "of the system", "seconds"),
)


def scale(index: RecordIndex) -> ResultTable:
    columns = (
        *_CELL,
        ResultColumn("strategy", "strategy"),
        ResultColumn("fatal", "fatal failures"),
        ResultColumn("interval", "checkpoint every", "seconds"),
        ResultColumn("expected", "expected overhead", "share"),
        ResultColumn("exact", "exact"),
        ResultColumn("mean", "simulated overhead", "share"),
        ResultColumn("overhead_low", "95% low", "share"),
        ResultColumn("overhead_high", "95% high", "share"),
        ResultColumn("efficiency", "efficiency", "share"),
    )
    rows = tuple(_scale_row(row) for row in index.jobs())
    note = (
        "Over the repetitions, Student's t. Expected: the closed form, exact or (where only some"
        " failures are fatal) an approximation."
    )
    return ResultTable(
        "scale", "Every strategy over MTBF and number of workers", columns, rows, note
    )


def _scale_row(row: Row) -> Row:
    told = {
        key: row[key]
        for key in (
            "model",
            "minutes",
            "workers",
            "mtbf",
            "strategy",
            "interval",
            "expected",
            "mean",
        )
    }
    told |= {
        "fatal": fatal(row),
        "exact": "yes" if row["exact"] else "no",
        "overhead_low": row["low"],
        "overhead_high": row["high"],
    }
    return told | {"efficiency": None if row["mean"] is None else 1 / (1 + row["mean"])}


def crossovers(index: RecordIndex) -> ResultTable:
    """Which strategy wins where."""
    rows = [
        _pair_row(index, a, b, model, percent)
        for a, b in PAIRS
        for model in index.models
        for percent in index.config.fatal_percent
    ]
    columns = (
        ResultColumn("a", "a"),
        ResultColumn("b", "b"),
        ResultColumn("model", "model"),
        ResultColumn("fatal", "fatal failures"),
        *(
            ResultColumn(key, label, "count")
            for key, label in (
                ("cells", "cells"),
                ("wins", "a costs less"),
                ("loses", "b costs less"),
                ("open", "not statistically distinguishable"),
            )
        ),
        ResultColumn("from_workers", "a costs less per failure from (workers)", "number"),
    )
    note = (
        "Paired by repetition, under the same failures; distinguishable: the 95% interval of the"
        " difference does not hold zero. From: by the closed form."
    )
    return ResultTable(
        "crossovers", "Which of two strategies costs less", columns, tuple(rows), note
    )


def _pair_row(index: RecordIndex, a: str, b: str, model: str, percent: int) -> Row:
    mine = [
        row
        for row in index.pairs()
        if (row["a"], row["b"], row["model"], row["fatal_percent"]) == (a, b, model, percent)
    ]
    row = {"a": a, "b": b, "model": model, "fatal": f"{percent}%", **decided(mine)}
    return row | {"from_workers": threshold(index, index.models[model], BY_NAME[a], BY_NAME[b])}


def threshold(index: RecordIndex, parts: Parts, a: StrategyModel, b: StrategyModel) -> float | None:
    """The number of workers from which a survived failure costs less under `a`, whose cost is A + B
    / workers; None if there is none.
    """
    if b.rolls_back:
        return None
    few, many = (
        _survived(index, parts, a, workers) - _survived(index, parts, b, workers)
        for workers in (1000 * index.config.casualties, 10**12)
    )
    if many >= 0:
        return None
    return max(1.0 + index.config.casualties, 1000 * index.config.casualties * (few - many) / -many)


def _survived(index: RecordIndex, parts: Parts, strategy: StrategyModel, workers: int) -> float:
    return math.fsum(strategy.costs(parts, index.scenario(workers), Loss(0.0)).values())


HOUR = 3600.0


def checks(index: RecordIndex) -> ResultTable:
    columns = (
        ResultColumn("case", "case (M: the MTBF)"),
        ResultColumn("simulated", "wall over work, simulated", "number"),
        ResultColumn("expected", "closed form", "number"),
        ResultColumn("difference", "difference", "change"),
        ResultColumn("score", "standard errors", "number"),
    )
    rows = tuple(
        check_row(row["case"], row) for planted in (False, True) for row in index.checks(planted)
    )
    note = (
        "Rollback: Daly's exact expected wall time. Forward: Wald's equation, with pauses that fail"
        " and work that is lost. Planted: must disagree."
    )
    return ResultTable("checks", "The simulation against closed forms", columns, rows, note)


def sanity(index: RecordIndex) -> ResultTable:
    """One row per assumption."""
    rows = dict[str, Row]()
    for record in index.of("two minutes"):
        facts, found = record.facts, record.found
        row = rows.setdefault(
            facts["assumption"],
            _reading(facts["assumption"], facts["checkpoint"], facts["restart"]),
        )
        row |= {
            f"{facts['at']}_mean": found["mean"],
            f"{facts['at']}_low": found["low"],
            f"{facts['at']}_high": found["high"],
        }
    columns = (
        ResultColumn("assumption", "assumption"),
        ResultColumn("checkpoint", "checkpoint", "seconds"),
        ResultColumn("restart", "restart", "seconds"),
        ResultColumn("needed", "true at an MTBF per GPU of (hours)", "number"),
        ResultColumn("needed_mean", "efficiency there, simulated", "share"),
        ResultColumn("needed_low", "95% low", "share"),
        ResultColumn("needed_high", "95% high", "share"),
        ResultColumn("longest", "longest interval of 90% at 40,000 h", "seconds"),
        ResultColumn("published_mean", "efficiency of two minutes at 40,000 h, simulated", "share"),
        ResultColumn("published_low", "95% low", "share"),
        ResultColumn("published_high", "95% high", "share"),
        ResultColumn("best", "best interval there", "seconds"),
        ResultColumn("best_efficiency", "its efficiency", "share"),
        ResultColumn("slowest", "true at 40,000 h with a restart of", "seconds"),
    )
    note = (
        'Published: "at 100,000 GPUs you need checkpoints every 2 minutes just to maintain 90%'
        ' training efficiency", beside a mean time to failure of 10 hours at 4,000 GPUs: 40,000'
        " hours per GPU. True: two minutes is the longest interval at which 90% of the time is"
        " work. Nothing: at no value."
    )
    return ResultTable(
        "two-minutes",
        "A checkpoint every two minutes at 100,000 GPUs",
        columns,
        tuple(rows.values()),
        note,
    )


def _reading(assumption: str, checkpoint: float, restart: float) -> Row:
    read = closed_forms.read_claim(checkpoint, restart)
    return {
        "assumption": assumption,
        "checkpoint": checkpoint,
        "restart": restart,
        "needed": None if read.needed_mtbf is None else read.needed_mtbf / HOUR,
        "longest": read.longest,
        "best": read.best_interval,
        "best_efficiency": read.best_efficiency,
        "slowest": read.restart,
    }


def recorded(index: RecordIndex) -> list[ResultTable]:
    """Each recorded failure beside its prediction, and each run."""
    return [_failures(index), _runs(index)] if index.recordings else []


def _failures(index: RecordIndex) -> ResultTable:
    columns = (
        ResultColumn("run", "run"),
        ResultColumn("attempt", "attempt", "count"),
        ResultColumn("since", "mini-batches since the checkpoint", "count"),
        *(
            ResultColumn(f"{name}{side}", f"{name}{side.replace('_', ' ')}", "seconds")
            for name in ("detect", "init", "restart", "replay")
            for side in _SIDES
        ),
        ResultColumn("total", "total predicted", "seconds"),
        ResultColumn("measured", "total measured", "seconds"),
        ResultColumn("error", "error", "change"),
        ResultColumn("from", "from other failures", "count"),
    )
    rows = tuple(_recorded_row(row) for row in index.recorded())
    note = (
        "Predicted: detection, initialization and restart from the mean of all other failures"
        " (where there is none its own: then no error is told); replay from the number of"
        " mini-batches since the checkpoint and the mean of those done once. The step in hand is"
        " part of the detection on record, the first step's warm-up part of the restart."
    )
    return ResultTable(
        "recorded", "Failures on record and what the model says of them", columns, rows, note
    )


_SIDES = ("_predicted", "_measured")


def _recorded_row(row: Row) -> Row:
    parts = {
        f"{name}_predicted": row["predicted"][name]
        for name in ("detect", "init", "restart", "replay")
    }
    parts |= {f"{name}_measured": row[name] for name in ("detect", "init", "restart", "replay")}
    told = {key: row[key] for key in ("run", "attempt", "since", "total", "measured", "from")}
    return {**told, **parts, "error": row["error"] if row["from"] else None}


def _runs(index: RecordIndex) -> ResultTable:
    columns = (
        ResultColumn("run", "run"),
        ResultColumn("recovery", "recovery"),
        ResultColumn("failures", "failures", "count"),
        *(
            ResultColumn(key, label, "seconds")
            for key, label in (("mini_batch", "mini-batch"), ("checkpoint", "per checkpoint"))
        ),
        ResultColumn("predicted", "wall predicted", "seconds"),
        ResultColumn("wall", "wall measured", "seconds"),
        ResultColumn("error", "error", "change"),
    )
    rows = tuple(_run_row(index, recording) for recording in index.recordings)
    note = (
        "Predicted: the launch of the run, its steps at their mean, its checkpoints at their mean"
        " stall, and each failure as the model has it."
    )
    return ResultTable(
        "runs", "Runs on record: their wall time from its parts", columns, rows, note
    )


def _run_row(index: RecordIndex, recording: RunTimings) -> Row:
    row: Row = {
        "run": recording.name,
        "recovery": recording.strategy,
        "failures": len(recording.failures),
        "mini_batch": recording.mini_batch,
    }
    row |= {"checkpoint": recording.checkpoint, "wall": recording.wall}
    if not recording.complete:
        return row
    failures = math.fsum(r["total"] for r in index.recorded() if r["run"] == recording.name)
    predicted = (
        recording.begin
        + recording.steps * recording.mini_batch
        + recording.checkpoints * recording.checkpoint
        + failures
    )
    return row | {"predicted": predicted, "error": predicted / recording.wall - 1}
