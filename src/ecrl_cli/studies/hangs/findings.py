"""What the records of the study show: tables, gates, and what they do not cover."""

from __future__ import annotations

from collections.abc import Sequence

from ecrl_cli.metrics.gates import Gate
from ecrl_cli.studies.result import PROPORTION_COLUMNS, Column, Findings, Table, proportion, upper_bound
from ecrl_cli.studies.study import Record


def findings(records: Sequence[Record]) -> Findings:
    cases, told, planted = (arm(records, name) for name in ("case", "story", "planted"))
    hung = [record for record in cases if "hung" in record.found["outcomes"]]
    gates = (
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


def found(records: Sequence[Record]) -> tuple[Gate, ...]:
    """No gate where nothing was planted."""
    if not records:
        return ()
    missed = [record.facts["what"] for record in records if not record.found["shown"]]
    message = f"planted {len(records) - len(missed)}/{len(records)} found" + (f"; not {missed[0]}" if missed else "")
    return (Gate("planted", not missed, message),)


def bugs(records: Sequence[Record]) -> Table:
    rows = tuple({"what": record.facts["what"], "shown": "yes" if record.found["shown"] else "no"} for record in records)
    return Table("planted", "Planted bugs", (Column("what", "planted bug"), Column("shown", "found")), rows)


def _nothing_left(records: Sequence[Record]) -> tuple[bool, str]:
    bad = [record.key for record in records if record.found["left"] or record.found["shared_memory"]]
    return bool(records) and not bad, f"{len(records) - len(bad)} of {len(records)} trials left no process and no shared memory" + _but(bad)


def _in_time(records: Sequence[Record]) -> tuple[bool, str]:
    longest = max((record.found["waited_s"] for record in records), default=0.0)
    return bool(records) and longest < 3, f"{len(records)} trials with a hang, found after {longest:.2f} times its limit at most (target: below 3)"


def _but(bad: Sequence[str]) -> str:
    return f"; not {bad[0]}" if bad else ""


def _cases(records: Sequence[Record]) -> Table:
    columns = (
        *(Column("what", "what happens"), Column("outcomes", "how the attempts ended"), Column("waited", "longest wait, in limits", "number")),
        *PROPORTION_COLUMNS,
    )
    rows = []
    for what in dict.fromkeys(record.facts["what"] for record in records):
        here = [record.found for record in records if record.facts["what"] == what]
        ends = " / ".join(dict.fromkeys(", ".join(one["outcomes"]) for one in here))
        waited = max(one["waited_s"] for one in here)
        rows.append({"what": what, "outcomes": ends, "waited": waited, **proportion(sum(not one["good"] for one in here), len(here))})
    return Table("cases", "What stands still, dies or wakes up late", columns, tuple(rows), "The proportion counts trials that ended otherwise.")


def _stories(records: Sequence[Record]) -> Table:
    columns = (Column("what", "story"), Column("bad", "count", "count"), Column("n", "of", "count"))
    rows = []
    for what in dict.fromkeys(record.facts["what"] for record in records):
        here = [record.found for record in records if record.facts["what"] == what]
        rows.append({"what": what, "bad": sum(not one["good"] for one in here), "n": len(here)})
    note = "slow: 1,000 steps, some as long as several timeouts. suspended: the supervisor is, for hours. standing: ranks stand, the writer moves."
    return Table("stories", "What the detector makes of it", columns, tuple(rows), note)


def _notes(records: Sequence[Record]) -> tuple[str, ...]:
    notes = [
        "Ranks are actors without torch that keep step through shared memory and save through the product's store; real training is struck in the "
        "tests and by the failure group.",
        "An agent that is stopped once its ranks have met is not needed any more: the run completes without a restart.",
        "Not tried here: a process that SIGKILL does not end (it sits in the kernel), a partition between machines.",
    ]
    if records and all(record.found["good"] for record in records):
        notes.insert(0, f"0 of {len(records)} trials ended otherwise than promised: below {upper_bound(len(records)):.1%} at 95% (one-sided, exact).")
    return tuple(notes)
