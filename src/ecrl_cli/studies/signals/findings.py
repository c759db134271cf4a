"""What the records of the study show: tables, gates, and what they do not cover."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ecrl_cli.metrics.gates import Gate
from ecrl_cli.studies.frame.result import Column, Findings, Table
from ecrl_cli.studies.frame.study import Record
from ecrl_cli.studies.hangs.findings import AS_PROMISED, all_good, all_over, arm, as_promised, bugs, counted, found

TARGET = 0.95  # of the trials with one signal between the first step and the last: the last step done is durable


def findings(records: Sequence[Record]) -> Findings:
    cases, control, planted = (arm(records, name) for name in ("case", "control", "planted"))
    graceful = [record for record in cases if record.found["graceful"]]
    kept = sum(record.found["kept"] for record in graceful)
    gates = (
        all_over(records),
        all_good("as_promised", cases, "stops that ended as promised, and a run that completed when started again"),
        Gate("durable", bool(graceful) and kept >= TARGET * len(graceful), f"{kept} of {len(graceful)} kept the last step done (target 95%)"),
        *((all_good("control", control, "stops of honest ranks that have as little grace as the planted ones, as promised"),) if planted else ()),
        *found(planted),
    )
    tables = (_words(cases), _latency(cases), bugs(planted))
    return Findings(tuple(table for table in tables if table.rows), (), gates, _notes(cases))


def _words(records: Sequence[Record]) -> Table:
    columns = (Column("word", "signal"), Column("phase", "phase"), Column("codes", "exit code"), Column("kept", "last step durable", "count"))
    rows = []
    for cell in dict.fromkeys((record.facts["word"], record.facts["phase"]) for record in records):
        here = [record.found for record in records if (record.facts["word"], record.facts["phase"]) == cell]
        row = {"word": cell[0], "phase": cell[1], "codes": ", ".join(sorted({str(one["code"]) for one in here}))}
        rows.append(row | {"kept": sum(one["kept"] for one in here), **as_promised(here)})
    note = "Before the first step, and when it is asked again, a run stops at once. A storm of signals at one moment is one request."
    return Table("words", "What asks a run to stop", (*columns, *AS_PROMISED), tuple(rows), note)


def _latency(records: Sequence[Record]) -> Table:
    columns = (Column("phase", "phase"), Column("half", "median", "seconds"), Column("most", "longest", "seconds"), Column("n", "of", "count"))
    rows = []
    for phase in dict.fromkeys(record.facts["phase"] for record in records):
        took = [record.found["seconds"] for record in records if record.facts["phase"] == phase]
        rows.append({"phase": phase, "half": median(took), "most": max(took), "n": len(took)})
    return Table("latency", "From the last request to the supervisor's end", columns, tuple(rows))


def _notes(records: Sequence[Record]) -> tuple[str, ...]:
    return (
        counted(records, "stops ended as promised"),
        "Signals go to the supervisor. Ranks, agent, zygote and writer ignore SIGTERM, SIGINT and SIGHUP: sent to them alone, they do nothing.",
        "Ranks are actors without torch; what stops real training is in the tests.",
        "Not tried here: SIGUSR1, by which a cluster asks.",
    )
