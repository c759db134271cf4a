"""What the records show: who refused what, at what cost, and what the study does not cover."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ecrl_cli.metrics.gates import Gate
from ecrl_cli.studies.frame.result import Column, Findings, Table
from ecrl_cli.studies.frame.study import Record
from ecrl_cli.studies.hostile.readers import PROGRAMS

INPUTS = 120  # at least so many
GROWTH = 64 * 2**20  # bytes of memory beyond what is looked at
READ = 64 * 2**20  # bytes read beyond twice what is looked at: the caps of the records, and Python's own files
CALLS = 20_000


def findings(records: Sequence[Record], whole: bool) -> Findings:
    """`whole`: whether every input was tried."""
    tried = [record for record in records if record.facts["arm"] == "input"]
    other = {record.facts["arm"]: record.found for record in records if record.facts["arm"] != "input"}
    alone = [record for record in tried if record.facts["look"] not in PROGRAMS and "grown" in record.found]
    gates = [
        Gate("inputs", len(tried) >= INPUTS or not whole, f"{len(tried)} hostile inputs, {INPUTS} at least"),
        _none("executed", tried, lambda found: found["canary"], "ran code"),
        _none("untyped", tried, lambda found: found["outcome"] == "untyped", "ended in an error that nobody raised on purpose"),
        _none("hung", tried, lambda found: found["outcome"] == "hung", "did not come to an end"),
        _none("accepted", tried, lambda found: found["outcome"] == "silent_wrong", "were taken for good"),
        _none("named", tried, lambda found: not found["expected"], "were refused by another layer than the one that is to name them"),
        _none("escaped", tried, lambda found: bool(found["escaped"]), "left something outside the run"),
        _none("memory", alone, lambda found: found["grown"] > GROWTH + found["payload"], "took more memory than 64 MiB and what they hold"),
        _none("read", alone, lambda found: found["read"] > READ + 2 * found["payload"], "were read further than the caps"),
        *_control(other.get("control")),
        *_audit(other.get("audit")),
    ]
    return Findings((_table(tried), _costs(alone), *_awake(other.get("control"))), (), tuple(gates), _notes(tried, other))


def _none(name: str, records: Sequence[Record], bad: Callable[[dict[str, Any]], bool], what: str) -> Gate:
    wrong = [record for record in records if bad(record.found)]
    which = f": {wrong[0].facts['input']} ({wrong[0].found.get('by')}: {str(wrong[0].found.get('reason'))[:100]})" if wrong else ""
    return Gate(name, bool(records) and not wrong, f"{len(wrong)} of {len(records)} {what}{which}")


def _control(found: dict[str, Any] | None) -> tuple[Gate, ...]:
    if found is None:
        return ()
    message = f"{len(found['ran'])} of {len(found['of'])} payloads ran under torch.load without restriction: else the canary would be blind"
    return (Gate("control", len(found["ran"]) == len(found["of"]) > 0, message),)


def _audit(found: dict[str, Any] | None) -> tuple[Gate, ...]:
    if found is None:
        return ()
    message = f"{len(found['outside'])} files outside the run touched in {found['looks']} looks ({found['opened']} opened inside)"
    message += f": {found['outside'][0]}" if found["outside"] else ""
    return (Gate("audit", not found["outside"] and found["looks"] > 0 and found["opened"] > 0, message),)


def _table(records: Sequence[Record]) -> Table:
    columns = (
        *(Column("group", "hostile input"), Column("n", "inputs", "count"), Column("by", "refused by")),
        *(Column(name, label, "count") for name, label in _OUTCOMES),
        *(Column("expected", "by whom it is to be", "count"), Column("canary", "canary made", "count")),
    )
    rows = []
    for group in dict.fromkeys(record.facts["group"] for record in records):
        here = [record.found for record in records if record.facts["group"] == group]
        by = Counter(found["by"] for found in here)
        row: dict[str, Any] = {"group": group, "n": len(here), "by": ", ".join(f"{name} {count}" for name, count in by.most_common())}
        row |= {name: sum(found["outcome"] == name for found in here) for name, _ in _OUTCOMES}
        row |= {"expected": sum(found["expected"] for found in here), "canary": sum(found["canary"] for found in here)}
        rows.append(row)
    return Table("hostile", "Hostile inputs, by group", columns, tuple(rows), "A fixed list, each input once: no interval.")


_OUTCOMES = (("detected", "refused"), ("silent_wrong", "taken for good"), ("untyped", "untyped error"), ("hung", "hung"))


def _costs(records: Sequence[Record]) -> Table:
    columns = (
        *(Column("group", "hostile input"), Column("grown", "most memory taken", "bytes"), Column("read", "most bytes read", "bytes")),
        *(Column("calls", "most read calls", "count"), Column("payload", "largest that was looked at", "bytes")),
    )
    rows = []
    for group in dict.fromkeys(record.facts["group"] for record in records):
        here = [record.found for record in records if record.facts["group"] == group]
        rows.append({"group": group} | {key: max(found[key] for found in here) for key in ("grown", "read", "calls", "payload")})
    note = "Of looks within a process; a program of its own (ecrl, torch) is watched for its end and its answer only."
    return Table("costs", "What refusing costs", columns, tuple(rows), note)


def _awake(found: dict[str, Any] | None) -> tuple[Table, ...]:
    if found is None:
        return ()
    columns = (Column("payload", "payload"), Column("ran", "ran under torch.load(weights_only=False)"))
    rows = tuple({"payload": name, "ran": "yes" if name in found["ran"] else "no"} for name in found["of"])
    return (Table("control", "The same payloads, unpickled without restriction", columns, rows),)


def _notes(tried: Sequence[Record], other: dict[str, dict[str, Any]]) -> tuple[str, ...]:
    notes = [
        f"{len(tried)} prepared inputs; they show that these are refused, not that no other input exists.",
        "The adversary may write the run directory, not the configuration, the code or the key, and has not the user's own uid while a run goes on.",
        "Whoever rewrites part, manifest, commit and chain alike is not seen without checkpoint.hmac_key_file.",
    ]
    if "audit" not in other:
        notes.append("Which files are opened was not audited here (no strace).")
    return tuple(notes)
