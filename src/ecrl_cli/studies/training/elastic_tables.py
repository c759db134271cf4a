"""What the records of `elastic` show: runs by mode and by number of phases, whether all of one model ended alike, planted bugs."""

from __future__ import annotations

from collections.abc import Sequence

from ecrl_cli.metrics.gates import Gate
from ecrl_cli.studies.frame.result import Findings, planted_gate, upper_bound
from ecrl_cli.studies.frame.study import Record
from ecrl_cli.studies.training.failures_tables import bad_table, by, planted_table, valid_gate


def findings(records: Sequence[Record]) -> Findings:
    runs = [record for record in records if record.facts["arm"] == "random"]
    planted = [record for record in records if record.facts["arm"] == "planted"]
    tables = (
        by("mode", "mode", runs, lambda record: [_mode(record)]),
        by("phases", "phases of a number of ranks", runs, lambda record: [str(len(record.facts["sizes"]))]),
        by("sizes", "number of ranks that took part", runs, lambda record: sorted({str(size) for _, size in record.facts["sizes"]})),
        by("strategy", "write strategy", runs, lambda record: [record.facts["strategy"]]),
        by("model", "model", runs, lambda record: [record.facts["model"]]),
        by("hash_seed", "PYTHONHASHSEED", runs, lambda record: [record.facts["hash_seed"]]),
        by("phase", "phase in which it struck", runs, lambda record: list(dict.fromkeys(moment for _, moment in record.found["fired"]))),
        bad_table(runs),
        planted_table(planted),
    )
    gates = (valid_gate(runs), *_alike(runs), *planted_gate({record.facts["bug"]: record.found["found"] for record in planted}))
    return Findings(tuple(table for table in tables if table.rows), (), gates, _notes(runs))


def _mode(record: Record) -> str:
    replicas = record.facts["replicas"]
    return f"{replicas} replicas" if replicas else "plain"


def _alike(runs: Sequence[Record]) -> tuple[Gate, ...]:
    """Held together here and not by the judge: one digest per model and number of replicas, whatever the sizes."""
    digests: dict[tuple[str, int], set[str]] = {}
    for record in runs:
        if record.facts["replicas"]:
            digests.setdefault((record.facts["model"], record.facts["replicas"]), set()).add(record.found["digests"])
    several = [f"{model} with {replicas} replicas: {len(found)}" for (model, replicas), found in digests.items() if len(found) > 1]
    count = sum(bool(record.facts["replicas"]) for record in runs)
    message = f"{count} runs with replicas ended in {sum(map(len, digests.values()))} states, of {len(digests)} models and numbers of replicas"
    return (Gate("alike", not several, message + (f"; not {', '.join(several)}" if several else "")),) if digests else ()


def _notes(runs: Sequence[Record]) -> tuple[str, ...]:
    good = bool(runs) and all(record.found["outcome"] == "valid" for record in runs)
    changes = sum(record.found["resized"] for record in runs)
    said = f"The number of ranks changed {changes} times in {len(runs)} runs. 0 runs lost or repeated a sample or ended in another state: rarer than "
    return (f"{said}{upper_bound(len(runs)):.2%} of such runs (one-sided exact 95%).",) if good else ()
