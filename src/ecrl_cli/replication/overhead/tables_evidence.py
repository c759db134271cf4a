"""Tables of the model's validation: closed forms, the published claim, recorded runs."""

from __future__ import annotations

import math

from ecrl_cli.replication.overhead import published_claim
from ecrl_cli.replication.overhead.checks import row as check_row
from ecrl_cli.replication.overhead.measured import Recording
from ecrl_cli.replication.overhead.record_index import RecordIndex, Row
from ecrl_cli.studies.frame.result import Column, Table

HOUR = 3600.0


def checks(index: RecordIndex) -> Table:
    columns = (
        Column("case", "case (M: the MTBF)"),
        Column("simulated", "wall over work, simulated", "number"),
        Column("expected", "closed form", "number"),
        Column("difference", "difference", "change"),
        Column("score", "standard errors", "number"),
    )
    rows = tuple(check_row(row["case"], row) for planted in (False, True) for row in index.checks(planted))
    note = "Rollback: Daly's exact expected wall time. Forward: Wald's equation, with pauses that fail and work that is lost. Planted: must disagree."
    return Table("checks", "The simulation against closed forms", columns, rows, note)


def sanity(index: RecordIndex) -> Table:
    """One row per assumption."""
    rows = dict[str, Row]()
    for record in index.of("two minutes"):
        facts, found = record.facts, record.found
        row = rows.setdefault(facts["assumption"], _reading(facts["assumption"], facts["checkpoint"], facts["restart"]))
        row |= {f"{facts['at']}_mean": found["mean"], f"{facts['at']}_low": found["low"], f"{facts['at']}_high": found["high"]}
    columns = (
        Column("assumption", "assumption"),
        Column("checkpoint", "checkpoint", "seconds"),
        Column("restart", "restart", "seconds"),
        Column("needed", "true at an MTBF per GPU of (hours)", "number"),
        Column("needed_mean", "efficiency there, simulated", "share"),
        Column("needed_low", "95% low", "share"),
        Column("needed_high", "95% high", "share"),
        Column("longest", "longest interval of 90% at 40,000 h", "seconds"),
        Column("published_mean", "efficiency of two minutes at 40,000 h, simulated", "share"),
        Column("published_low", "95% low", "share"),
        Column("published_high", "95% high", "share"),
        Column("best", "best interval there", "seconds"),
        Column("best_efficiency", "its efficiency", "share"),
        Column("slowest", "true at 40,000 h with a restart of", "seconds"),
    )
    note = (
        'Published: "at 100,000 GPUs you need checkpoints every 2 minutes just to maintain 90% training efficiency", beside a mean time to failure '
        "of 10 hours at 4,000 GPUs: 40,000 hours per GPU. True: two minutes is the longest interval at which 90% of the time is work. Nothing: at no "
        "value."
    )
    return Table("two-minutes", "A checkpoint every two minutes at 100,000 GPUs", columns, tuple(rows.values()), note)


def _reading(assumption: str, checkpoint: float, restart: float) -> Row:
    read = published_claim.read(checkpoint, restart)
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


def recorded(index: RecordIndex) -> list[Table]:
    """Each recorded failure beside its prediction, and each run."""
    return [_failures(index), _runs(index)] if index.recordings else []


def _failures(index: RecordIndex) -> Table:
    columns = (
        Column("run", "run"),
        Column("attempt", "attempt", "count"),
        Column("since", "mini-batches since the checkpoint", "count"),
        *(
            Column(f"{name}{side}", f"{name}{side.replace('_', ' ')}", "seconds")
            for name in ("detect", "init", "restart", "replay")
            for side in _SIDES
        ),
        Column("total", "total predicted", "seconds"),
        Column("measured", "total measured", "seconds"),
        Column("error", "error", "change"),
        Column("from", "from other failures", "count"),
    )
    rows = tuple(_failure_row(row) for row in index.recorded())
    note = (
        "Predicted: detection, initialization and restart from the mean of all other failures (where there is none its own: then no error is told); "
        "replay from the number of mini-batches since the checkpoint and the mean of those done once. The step in hand is part of the detection on "
        "record, the first step's warm-up part of the restart."
    )
    return Table("recorded", "Failures on record and what the model says of them", columns, rows, note)


_SIDES = ("_predicted", "_measured")


def _failure_row(row: Row) -> Row:
    parts = {f"{name}_predicted": row["predicted"][name] for name in ("detect", "init", "restart", "replay")}
    parts |= {f"{name}_measured": row[name] for name in ("detect", "init", "restart", "replay")}
    told = {key: row[key] for key in ("run", "attempt", "since", "total", "measured", "from")}
    return {**told, **parts, "error": row["total"] / row["measured"] - 1 if row["from"] else None}


def _runs(index: RecordIndex) -> Table:
    columns = (
        Column("run", "run"),
        Column("recovery", "recovery"),
        Column("failures", "failures", "count"),
        *(Column(key, label, "seconds") for key, label in (("mini_batch", "mini-batch"), ("checkpoint", "per checkpoint"))),
        Column("predicted", "wall predicted", "seconds"),
        Column("wall", "wall measured", "seconds"),
        Column("error", "error", "change"),
    )
    rows = tuple(_run_row(index, recording) for recording in index.recordings)
    note = "Predicted: the launch of the run, its steps at their mean, its checkpoints at their mean stall, and each failure as the model has it."
    return Table("runs", "Runs on record: their wall time from its parts", columns, rows, note)


def _run_row(index: RecordIndex, recording: Recording) -> Row:
    row: Row = {"run": recording.name, "recovery": recording.strategy, "failures": len(recording.failures), "mini_batch": recording.mini_batch}
    row |= {"checkpoint": recording.checkpoint, "wall": recording.wall}
    if not recording.complete:
        return row
    failures = math.fsum(r["total"] for r in index.recorded() if r["run"] == recording.name)
    predicted = recording.begin + recording.steps * recording.mini_batch + recording.checkpoints * recording.checkpoint + failures
    return row | {"predicted": predicted, "error": predicted / recording.wall - 1}
