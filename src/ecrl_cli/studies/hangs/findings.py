"""What the records of the study show: tables, gates, and what they do not cover."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ecrl_cli.metrics.gates import Gate
from ecrl_cli.studies.frame.result import Column, Findings, Table, planted_gate
from ecrl_cli.studies.frame.study import Record
from ecrl_cli.studies.hangs.cases import IN_LIMITS

# k of n
AS_PROMISED = (Column("good", "as promised", "count"), Column("n", "of", "count"))


def findings(records: Sequence[Record]) -> Findings:
    cases, told, planted = (arm(records, name) for name in ("case", "story", "planted"))
    hung = [record for record in cases if "hung" in record.found["outcomes"]]
    gates = (
        all_over(records),
        all_good("as_promised", cases, "trials that ended as promised"),
        Gate("nothing_left", *_nothing_left(cases)),
        Gate("in_time", *_in_time(hung)),
        all_good("detector", told, "stories told to the detector by a clock of the study's own, as promised"),
        *found(planted),
    )
    tables = (_cases(cases), _stories(told), bugs(planted))
    return Findings(tuple(table for table in tables if table.rows), (), gates, _notes(cases))


def arm(records: Sequence[Record], name: str) -> list[Record]:
    return [record for record in records if record.facts["arm"] == name]


def all_good(name: str, records: Sequence[Record], what: str) -> Gate:
    bad = [record.key for record in records if not record.found["good"]]
    return Gate(name, bool(records) and not bad, f"{len(records) - len(bad)} of {len(records)} {what}" + (f"; not {bad[0]}" if bad else ""))


def all_over(records: Sequence[Record]) -> Gate:
    late = [record.key for record in records if record.found["overdue"]]
    return Gate("over", not late, f"{len(records) - len(late)} of {len(records)} trials came to an end by themselves" + _but(late))


def found(records: Sequence[Record]) -> tuple[Gate, ...]:
    return planted_gate({record.facts["what"]: record.found["shown"] for record in records})


def bugs(records: Sequence[Record]) -> Table:
    rows = tuple({"what": record.facts["what"], "shown": "yes" if record.found["shown"] else "no"} for record in records)
    return Table("planted", "Planted bugs", (Column("what", "planted bug"), Column("shown", "found")), rows)


def as_promised(here: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """What AS_PROMISED shows of one row."""
    return {"good": sum(one["good"] for one in here), "n": len(here)}


def counted(records: Sequence[Record], what: str) -> str:
    """In words. No bound on a probability: these are cells that somebody designed, not draws of one thing."""
    return f"{sum(record.found['good'] for record in records)} of {len(records)} {what}: cells chosen by design, so no probability follows."


def _nothing_left(records: Sequence[Record]) -> tuple[bool, str]:
    bad = [record.key for record in records if record.found["left"] or record.found["shared_memory"]]
    return bool(records) and not bad, f"{len(records) - len(bad)} of {len(records)} trials left no process and no shared memory" + _but(bad)


def _in_time(records: Sequence[Record]) -> tuple[bool, str]:
    longest = max((record.found["found_after"] for record in records), default=0.0)
    said = f"{len(records)} trials with a hang, ended at most {longest:.2f} times its limit after the last step"
    return bool(records) and longest < IN_LIMITS, f"{said}, by the ranks' own lines (target: below {IN_LIMITS:g})"


def _but(bad: Sequence[str]) -> str:
    return f"; not {bad[0]}" if bad else ""


def _cases(records: Sequence[Record]) -> Table:
    columns = (
        *(Column("what", "what happens"), Column("outcomes", "how the attempts ended")),
        *(Column("waited", "longest wait, in limits", "number"), *AS_PROMISED),
    )
    rows = []
    for what in dict.fromkeys(record.facts["what"] for record in records):
        here = [record.found for record in records if record.facts["what"] == what]
        ends = " / ".join(dict.fromkeys(", ".join(one["outcomes"]) for one in here))
        rows.append({"what": what, "outcomes": ends, "waited": max(one["found_after"] for one in here), **as_promised(here)})
    return Table("cases", "What stands still, dies or wakes up late", columns, tuple(rows))


def _stories(records: Sequence[Record]) -> Table:
    columns = (Column("what", "story"), Column("bad", "count", "count"), Column("n", "of", "count"))
    rows = []
    for what in dict.fromkeys(record.facts["what"] for record in records):
        here = [record.found for record in records if record.facts["what"] == what]
        rows.append({"what": what, "bad": sum(not one["good"] for one in here), "n": len(here)})
    note = "slow: 1,000 steps, some as long as several timeouts. suspended: the supervisor is, for hours. standing: ranks stand, the writer moves."
    return Table("stories", "What the detector makes of it", columns, tuple(rows), note)


def _notes(records: Sequence[Record]) -> tuple[str, ...]:
    return (
        counted(records, "trials ended as promised"),
        "Ranks are actors without torch that keep step through shared memory and save through the product's store; real training is struck in the "
        "tests and by the failure group.",
        "An agent that is stopped once its ranks have met is not needed any more: the run completes without a restart.",
        "Not tried here: a process that SIGKILL does not end (it sits in the kernel), a partition between machines, a full disk, a run directory "
        "that is deleted, renamed or replaced meanwhile, no descriptor left, no memory left (ENOMEM).",
    )
