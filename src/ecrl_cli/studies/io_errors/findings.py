"""What the records of `io-errors` show: tables, gates, sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ecrl_cli.config.studies import IoErrors
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.studies.frame.result import Column, Findings, Table
from ecrl_cli.studies.frame.study import Record

ENOUGH = 5000  # cases
_SHOWN = 30  # violations in the table
_COUNTS = {
    "cases": "cases",
    "errors": "typed errors",
    "successes": "legal successes",
    "stepped_back": "recovery stepped back",
    "violations": "violations",
}
_COUNT_COLUMNS = tuple(Column(key, label, "count") for key, label in _COUNTS.items())


def findings(config: IoErrors, records: Sequence[Record]) -> Findings:
    arms = {arm: [record for record in records if record.facts["arm"] == arm] for arm in ("calls", "planted", "space", "inodes", "sync")}
    real = {arm: arms[arm] for arm in ("space", "inodes", "sync") if arms[arm]}
    tables = [_by_fault(arms["calls"]), _by_cell(arms["calls"])] if arms["calls"] else []
    tables += [_real(real)] if real else []
    tables += [_planted(arms["planted"])] if arms["planted"] else []
    broken = [record for record in records if record.found.get("violations")]
    return Findings(
        tables=(*tables, *([_violations(broken)] if broken else [])),
        gates=tuple(_gates(config, arms, broken)),
        notes=tuple(_notes(arms)),
    )


def _by_fault(records: Sequence[Record]) -> Table:
    return Table(
        "calls",
        "Each call refused, by operation and fault",
        (Column("operation", "operation"), Column("fault", "fault"), *_COUNT_COLUMNS),
        tuple(_grouped(records, lambda facts: {"operation": facts["operation"], "fault": facts["fault"]})),
        "A case: one operation with its n-th call refused, once or from then on. In memory; a sync that fails drops what it should have kept.",
    )


def _by_cell(records: Sequence[Record]) -> Table:
    columns = (Column("layout", "layout"), Column("mode", "write mode"), Column("persistence", "refused"), *_COUNT_COLUMNS)
    rows = _grouped(records, lambda facts: {key: facts[key] for key in ("layout", "mode", "persistence")})
    return Table("cells", "Each call refused, by layout and write mode", columns, tuple(rows))


def _grouped(records: Sequence[Record], label: Callable[[dict[str, Any]], dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per label, in the order of first appearance, with the counts added up."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for record in records:
        named = label(record.facts)
        row = rows.setdefault(tuple(named.values()), {**named, **dict.fromkeys(_COUNTS, 0)})
        for key in _COUNTS:
            row[key] += record.found[key]
    return list(rows.values())


_REAL = {
    "space": "a full disk: tmpfs with room for n pages",
    "inodes": "a disk without inodes: tmpfs with room for n files",
    "sync": "the kernel refuses the K-th fsync (strace)",
}


def _real(arms: dict[str, list[Record]]) -> Table:
    rows = [
        {
            "arm": _REAL[arm],
            "cases": len(records),
            "refused": sum(bool(record.found["call"]) for record in records),
            "saved": sum(record.found["outcome"] == "new" for record in records),
            "violations": sum(record.found["violations"] for record in records),
        }
        for arm, records in arms.items()
    ]
    counts = (("cases", "cases"), ("refused", "typed errors"), ("saved", "saved"), ("violations", "violations"))
    columns = (Column("arm", "arm"), *(Column(key, label, "count") for key, label in counts))
    return Table("real", "Refused by the real kernel", columns, tuple(rows), "The layouts and write modes take turns.")


def _planted(records: Sequence[Record]) -> Table:
    rows = tuple({"mutant": r.facts["mutant"], "found": "found" if r.found["found"] else "NOT FOUND", "by": r.found["first"]} for r in records)
    return Table("planted", "Planted bugs", (Column("mutant", "a store that"), Column("found", "found"), Column("by", "by")), rows)


def _violations(broken: Sequence[Record]) -> Table:
    rows = tuple({"trial": r.key, "count": r.found["violations"], "first": r.found["first"]} for r in broken[:_SHOWN])
    note = f"The first {len(rows)} of {len(broken)} trials with a violation; `trial=KEY` runs one again."
    return Table(
        "violations", "Violations", (Column("trial", "trial"), Column("count", "violations", "count"), Column("first", "the first")), rows, note
    )


def _gates(config: IoErrors, arms: dict[str, list[Record]], broken: Sequence[Record]) -> list[Gate]:
    cases = sum(record.found["cases"] for record in arms["calls"])
    first = f"; the first: {broken[0].key}: {broken[0].found['first']}" if broken else ""
    gates = [Gate("violations", not broken, f"{sum(record.found['violations'] for record in broken)} violations{first}")]
    if "calls" in config.arms:
        gates.append(Gate("cases", cases >= ENOUGH, f"{cases} cases in memory, {ENOUGH} are due"))
    if config.planted:
        found = sum(record.found["found"] for record in arms["planted"])
        gates.append(Gate("planted", found == len(arms["planted"]) > 0, f"planted {found}/{len(arms['planted'])} found"))
    gates += [_both(arm, arms[arm]) for arm in ("space", "inodes", "sync") if arms[arm]]
    return gates


def _both(arm: str, records: Sequence[Record]) -> Gate:
    """An arm in which nothing is refused, or nothing gets through, has tried nothing."""
    refused, saved = (sum(bool(record.found["call"]) is wanted for record in records) for wanted in (True, False))
    return Gate(arm, refused > 0 and saved > 0, f"{len(records)} saves: {refused} refused, {saved} went through")


def _notes(arms: dict[str, list[Record]]) -> list[str]:
    notes = []
    if arms["calls"]:
        cases = sum(record.found["cases"] for record in arms["calls"])
        stepped = sum(record.found["stepped_back"] for record in arms["calls"])
        notes.append(f"{cases} cases are all calls of these operations on one small store in each fault: a count, not a sample, hence no interval.")
        notes.append(
            f"In {stepped} cases recovery passed over a checkpoint that the disk would not show (EIO, ESTALE, ...), by name, and took an older one: "
            "whether that file will ever be read again only the medium knows."
        )
    if arms["planted"]:
        notes.append(f"planted {sum(record.found['found'] for record in arms['planted'])}/{len(arms['planted'])} found.")
    return notes
