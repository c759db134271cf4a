"""The tables of the model (parts, best intervals, overheads at scale) and of its validation: closed
forms, the published claim, recorded runs.
"""

from __future__ import annotations

import math

from ecrl_cli.replication.overhead import closed_forms
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
from ecrl_cli.studies.frame.result import ResultTable
from ecrl_cli.studies.frame.tables import Cells, cell, grouped, item, items, table

# The mini-batch of each application at which the published study injects the failure.
SCENARIOS = {"ResNet-50": (200, 4000, 10_000, 25_000), "CANDLE-NT3": (10, 250, 500)}


def at_scale(index: RecordIndex) -> ResultTable:
    """The main table: every strategy at the largest size, over the MTBF."""
    minutes = index.config.mtbf_min
    columns = (
        *items("text", model="model", strategy="strategy"),
        cell("fatal", "fatal failures", "text", fatal),
        item("samples", "mini-batches lost for good", "number"),
        *(item(f"at_{m}", f"overhead, MTBF {duration(m)}", "share") for m in minutes),
    )
    jobs = grouped(
        (job for job in index.jobs() if job["workers"] == index.most),
        lambda job: (job["model"], job["strategy"], fatal(job)),
    ).values()
    rows = [group[0] | {f"at_{job['minutes']}": job["mean"] for job in group} for group in jobs]
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
    return table(
        "overheads", f"What each strategy costs at {index.most} workers", columns, rows, note
    )


def duration(minutes: int) -> str:
    return f"{minutes} min" if minutes % 60 else f"{minutes // 60} h"


def fatal(row: Row) -> str:
    return "all roll back" if row["fatal_percent"] is None else f"{row['fatal_percent']}%"


def per_failure(index: RecordIndex) -> ResultTable:
    """Expected seconds of each part of a failure."""
    columns = (
        *items("text", model="model", strategy="strategy"),
        *items("seconds", **{name: name for name in NAMES}),
        *items(
            "seconds",
            total="per failure",
            checkpoint="per checkpoint",
            published="per failure by the published rule",
        ),
    )
    # the same failure under another interval gives no new row
    rows = [
        _failure_row(index, model, parts, strategy)
        for model, parts in index.models.items()
        for strategy in STRATEGIES
        if strategy.name != "checkpoint_restart, every epoch"
    ]
    note = (
        f"{index.least} workers, {index.config.casualties} of them lost, half an epoch (or half the"
        " interval given) since the checkpoint, half a mini-batch done. By the published rule:"
        " initialization, restart and the replay, of a whole mini-batch under immediate rollback;"
        " nothing under lossy forward."
    )
    return table(
        "per-failure", "What a failure costs, part by part (expected)", columns, rows, note
    )


def _failure_row(index: RecordIndex, model: str, parts: Parts, strategy: StrategyModel) -> Row:
    costs = strategy.costs(parts, index.scenario(index.least), expected_loss(parts, parts.every))
    kept = parts.snapshot if strategy.snapshots else None
    return costs | {
        "model": model,
        "strategy": strategy.name,
        "total": math.fsum(costs.values()),
        "checkpoint": parts.checkpoint if strategy.rolls_back else kept,
        "published": published(strategy.name, parts, parts.every / 2),
    }


def published(strategy: str, parts: Parts, since: float) -> float | None:
    """The published cost rule (sections IV-C and E)."""
    return {
        "checkpoint_restart": parts.start + since * parts.mini_batch,
        "immediate_rollback": parts.start + parts.mini_batch,
        "lossy_forward": 0.0,
    }.get(strategy)


_ENDS = ("checkpoint_restart", "immediate_rollback", "lossy_forward")


def scenarios(index: RecordIndex) -> ResultTable:
    """Replay over the epoch (published figure 2c), and end to end."""
    rows = [
        _scenario(model, parts, batch)
        for model, parts in index.models.items()
        for batch in SCENARIOS.get(model, ())
        if model in PUBLISHED
    ]
    columns = (
        item("model", "model"),
        *items("count", mini_batch="mini-batch", epoch="epoch", since="since the checkpoint"),
        *items("seconds", replay="replay", epoch_s="epoch"),
        *items("seconds", **{name: f"{name} (end to end)" for name in _ENDS}),
        item("times_replay", "replay in mini-batches", "number"),
        item("times", "checkpoint_restart over immediate_rollback", "number"),
    )
    note = (
        "By the published rule and Table I; but an epoch of NT3 has 56 mini-batches (1,120 / 20),"
        " where the table has 55: its last scenario lies in epoch 8 (counted from 0), as in the"
        " text."
    )
    title = "The published scenarios: replay against epoch, and each strategy end to end"
    return table("scenarios", title, columns, rows, note)


def _scenario(model: str, parts: Parts, batch: int) -> Row:
    since = batch % parts.every
    costs = {name: published(name, parts, since) for name in _ENDS}
    return costs | {
        "model": model,
        "mini_batch": batch,
        "epoch": batch // parts.every,
        "since": since,
        "replay": since * parts.mini_batch,
        "epoch_s": parts.every * parts.mini_batch,
        "times_replay": float(since),
        "times": (costs["checkpoint_restart"] or 0.0) / (costs["immediate_rollback"] or math.inf),
    }


_CELL = (
    item("model", "model"),
    *items("count", minutes="MTBF, minutes", workers="workers"),
    item("mtbf", "of the system", "seconds"),
)


def _overhead_at(key: str, label: str, interval: str) -> Cells:
    """The overhead at one of the intervals of a search."""
    return cell(key, label, "share", lambda row: row["at"][interval])


def optimum(index: RecordIndex) -> ResultTable:
    columns = (
        *_CELL,
        *items(
            "seconds",
            young="Young",
            daly_first="Daly, first order",
            daly="Daly",
            exact="exact",
            simulated="simulated best",
        ),
        item("alike_low", "not statistically distinguishable, low", "seconds", "low"),
        item("alike_high", "not statistically distinguishable, high", "seconds", "high"),
        _overhead_at("at_young", "overhead at Young", "young"),
        _overhead_at("at_daly", "overhead at Daly", "daly"),
        _overhead_at("at_simulated", "overhead at the best", "simulated"),
    )
    note = (
        "checkpoint_restart. Exact: the minimum of Daly's exact wall time. Not statistically"
        " distinguishable: intervals whose paired difference to the best holds zero. Left out:"
        " cells in which a job does not end with one of the intervals tried."
    )
    title = "The best checkpoint interval, by formula and by search"
    return table("optimum", title, columns, index.optima(), note)


def weibull(index: RecordIndex) -> ResultTable:
    """The same search with failures in bursts (shape < 1) and the same mean gap."""
    plain = {
        (row["model"], row["minutes"]): {
            "exponential": row["simulated"],
            "at_exponential": row["at"]["daly"],
        }
        for row in index.optima()
        if row["workers"] == index.most
    }
    shape = index.config.weibull_shape
    rows = [row | plain.get((row["model"], row["minutes"]), {}) for row in index.optima(shape)]
    columns = (
        *_CELL,
        item("exponential", "best interval, exponential", "seconds"),
        item("simulated", f"best interval, Weibull {shape:g}", "seconds"),
        item("at_exponential", "overhead at Daly, exponential", "share"),
        _overhead_at("at", "overhead at Daly, Weibull", "daly"),
        _overhead_at("best", "overhead at the best, Weibull", "simulated"),
    )
    note = (
        "Gaps between failures of the system, independent and of the same mean; below shape 1 they"
        " come in bursts."
    )
    return table("weibull", "Failures that come in bursts", columns, rows, note)


def scale(index: RecordIndex) -> ResultTable:
    columns = (
        *_CELL,
        item("strategy", "strategy"),
        cell("fatal", "fatal failures", "text", fatal),
        item("interval", "checkpoint every", "seconds"),
        item("expected", "expected overhead", "share"),
        cell("exact", "exact", "text", lambda row: "yes" if row["exact"] else "no"),
        item("mean", "simulated overhead", "share"),
        item("overhead_low", "95% low", "share", "low"),
        item("overhead_high", "95% high", "share", "high"),
        cell(
            "efficiency",
            "efficiency",
            "share",
            lambda row: None if row["mean"] is None else 1 / (1 + row["mean"]),
        ),
    )
    note = (
        "Over the repetitions, Student's t. Expected: the closed form, exact or (where only some"
        " failures are fatal) an approximation."
    )
    title = "Every strategy over MTBF and number of workers"
    return table("scale", title, columns, index.jobs(), note)


def crossovers(index: RecordIndex) -> ResultTable:
    """Which strategy wins where."""
    rows = [
        _pair_row(index, a, b, model, percent)
        for a, b in PAIRS
        for model in index.models
        for percent in index.config.fatal_percent
    ]
    columns = (
        *items("text", a="a", b="b", model="model", fatal="fatal failures"),
        *items(
            "count",
            cells="cells",
            wins="a costs less",
            loses="b costs less",
            open="not statistically distinguishable",
        ),
        item("from_workers", "a costs less per failure from (workers)", "number"),
    )
    note = (
        "Paired by repetition, under the same failures; distinguishable: the 95% interval of the"
        " difference does not hold zero. From: by the closed form."
    )
    return table("crossovers", "Which of two strategies costs less", columns, rows, note)


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
        item("case", "case (M: the MTBF)"),
        item("simulated", "wall over work, simulated", "number"),
        item("expected", "closed form", "number"),
        cell(
            "difference",
            "difference",
            "change",
            lambda row: row["simulated"] / row["expected"] - 1,
        ),
        item("score", "standard errors", "number"),
    )
    note = (
        "Rollback: Daly's exact expected wall time. Forward: Wald's equation, with pauses that fail"
        " and work that is lost. Planted: must disagree."
    )
    title = "The simulation against closed forms"
    return table("checks", title, columns, (*index.checks(False), *index.checks(True)), note)


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
        item("assumption", "assumption"),
        *items("seconds", checkpoint="checkpoint", restart="restart"),
        item("needed", "true at an MTBF per GPU of (hours)", "number"),
        *items(
            "share",
            needed_mean="efficiency there, simulated",
            needed_low="95% low",
            needed_high="95% high",
        ),
        item("longest", "longest interval of 90% at 40,000 h", "seconds"),
        *items(
            "share",
            published_mean="efficiency of two minutes at 40,000 h, simulated",
            published_low="95% low",
            published_high="95% high",
        ),
        item("best", "best interval there", "seconds"),
        item("best_efficiency", "its efficiency", "share"),
        item("slowest", "true at 40,000 h with a restart of", "seconds"),
    )
    note = (
        'Published: "at 100,000 GPUs you need checkpoints every 2 minutes just to maintain 90%'
        ' training efficiency", beside a mean time to failure of 10 hours at 4,000 GPUs: 40,000'
        " hours per GPU. True: two minutes is the longest interval at which 90% of the time is"
        " work. Nothing: at no value."
    )
    title = "A checkpoint every two minutes at 100,000 GPUs"
    return table("two-minutes", title, columns, rows.values(), note)


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


_WAITS = ("detect", "init", "restart", "replay")


def _beside(part: str) -> tuple[Cells, Cells]:
    """The predicted and the measured seconds of a part of a failure."""
    return (
        cell(
            f"{part}_predicted", f"{part} predicted", "seconds", lambda row: row["predicted"][part]
        ),
        item(f"{part}_measured", f"{part} measured", "seconds", part),
    )


def failures(index: RecordIndex) -> ResultTable:
    """Each recorded failure beside its prediction."""
    columns = (
        item("run", "run"),
        *items("count", attempt="attempt", since="mini-batches since the checkpoint"),
        *(cells for part in _WAITS for cells in _beside(part)),
        *items("seconds", total="total predicted", measured="total measured"),
        cell("error", "error", "change", lambda row: row["error"] if row["from"] else None),
        item("from", "from other failures", "count"),
    )
    note = (
        "Predicted: detection, initialization and restart from the mean of all other failures"
        " (where there is none its own: then no error is told); replay from the number of"
        " mini-batches since the checkpoint and the mean of those done once. The step in hand is"
        " part of the detection on record, the first step's warm-up part of the restart."
    )
    title = "Failures on record and what the model says of them"
    return table("recorded", title, columns, index.recorded(), note)


def runs(index: RecordIndex) -> ResultTable:
    """Each recorded run beside its prediction."""

    def error(run: RunTimings) -> float | None:
        return _wall(index, run) / run.wall - 1 if run.complete else None

    columns = (
        item("run", "run", of="name"),
        item("recovery", "recovery", of="strategy"),
        cell("failures", "failures", "count", lambda run: len(run.failures)),
        *items("seconds", mini_batch="mini-batch", checkpoint="per checkpoint"),
        cell(
            "predicted",
            "wall predicted",
            "seconds",
            lambda run: _wall(index, run) if run.complete else None,
        ),
        item("wall", "wall measured", "seconds"),
        cell("error", "error", "change", error),
    )
    note = (
        "Predicted: the launch of the run, its steps at their mean, its checkpoints at their mean"
        " stall, and each failure as the model has it."
    )
    title = "Runs on record: their wall time from its parts"
    return table("runs", title, columns, index.recordings, note)


def _wall(index: RecordIndex, run: RunTimings) -> float:
    """The predicted wall time of a run."""
    failures = math.fsum(row["total"] for row in index.recorded() if row["run"] == run.name)
    steps = run.steps * run.mini_batch
    return run.begin + steps + run.checkpoints * run.checkpoint + failures


ORDER = (
    at_scale,
    failures,
    runs,
    per_failure,
    scenarios,
    crossovers,
    optimum,
    weibull,
    sanity,
    scale,
    checks,
)
