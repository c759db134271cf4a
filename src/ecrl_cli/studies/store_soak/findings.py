"""What the records of `store-soak` show: what was done and met, disagreements, planted bugs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ecrl_cli.metrics.gates import Gate
from ecrl_cli.studies.frame.result import Column, Findings, Table, planted_gate, upper_bound
from ecrl_cli.studies.frame.study import Record
from ecrl_cli.studies.store_soak.operations import SHARES

TROUBLES = ("met kill", "met O", "met X", "met rival", "met a fault")
ENOUGH = 20  # times that everything must have been done and met, in a study of a thousand operations and more
_THOUSAND = 1000
_SAID = {
    "met kill": "killed between two calls",
    "met O": "power lost between two calls (O: names in order)",
    "met X": "power lost between two calls (X: what POSIX promises)",
    "met rival": "a newer attempt began between two calls",
    "met a fault": "a call was refused",
}


def findings(records: Sequence[Record]) -> Findings:
    programs = [record for record in records if record.facts["arm"] == "programs"]
    planted = [record for record in records if record.facts["arm"] == "planted"]
    met = sum((Counter(record.found["met"]) for record in programs), Counter[str]())
    wrong = [record for record in programs if record.found["wrong"]]
    tables = (_cells(programs), _met(met), _disagreements(wrong), _planted(planted))
    return Findings(tuple(table for table in tables if table.rows), (), _gates(programs, planted, met), _notes(programs, wrong))


def _cells(programs: Sequence[Record]) -> Table:
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for record in programs:
        mode, layout = record.facts["mode"], record.facts["layout"]
        row = rows.setdefault((mode, layout), {"mode": mode, "layout": layout, "programs": 0, "ops": 0, "acknowledged": 0, "wrong": 0})
        row["programs"] += 1
        row["ops"] += record.found["ops"]
        row["acknowledged"] += record.found["met"].get("acknowledged", 0)
        row["wrong"] += bool(record.found["wrong"])
    counts = (("programs", "programs"), ("ops", "operations"), ("acknowledged", "saves acknowledged"), ("wrong", "disagreements"))
    columns = (Column("mode", "write mode"), Column("layout", "layout"), *(Column(key, label, "count") for key, label in counts))
    return Table("programs", "Random programs against the reference", columns, tuple(rows.values()))


def _met(met: Counter[str]) -> Table:
    said = {**{do: f"{do} (operation)" for do in SHARES}, **_SAID}
    rows = [{"what": said.get(what, what), "n": met[what]} for what in (*SHARES, *TROUBLES, *sorted(w for w in met if w.startswith("recovered")))]
    return Table("met", "What was done, and what befell it", (Column("what", "what"), Column("n", "times", "count")), tuple(rows))


def _disagreements(wrong: Sequence[Record]) -> Table:
    rows = tuple({"trial": r.key, "wrong": r.found["wrong"], "ops": " | ".join(r.found["shortest"]), "replay": r.found["replay"]} for r in wrong)
    columns = (Column("trial", "trial"), Column("wrong", "the store"), Column("ops", "shortest program"), Column("replay", "again"))
    return Table("disagreements", "Disagreements", columns, rows)


def _planted(planted: Sequence[Record]) -> Table:
    rows = tuple(
        {**r.facts, "answer": "found" if r.found["found"] else "NOT FOUND", "ops": r.found["ops"], "wrong": r.found["wrong"]} for r in planted
    )
    columns = (
        *(Column(key, label) for key, label in (("bug", "planted bug"), ("step", "step of the protocol"), ("answer", "answer"))),
        Column("ops", "operations until then", "count"),
        Column("wrong", "what showed it"),
    )
    return Table("planted", "Is the study blind? Bugs planted in the store", columns, rows)


def _gates(programs: Sequence[Record], planted: Sequence[Record], met: Counter[str]) -> tuple[Gate, ...]:
    ops, wrong = sum(record.found["ops"] for record in programs), [record for record in programs if record.found["wrong"]]
    first = f"; the first: {wrong[0].found['wrong']}: {' | '.join(wrong[0].found['shortest'])}: {wrong[0].found['replay']}" if wrong else ""
    gates = [Gate("agreed", bool(programs) and not wrong, f"{len(wrong)} disagreements in {ops} operations{first}")]
    if ops >= _THOUSAND:
        rare = [what for what in (*SHARES, *TROUBLES) if met[what] < ENOUGH]
        gates.append(Gate("met", not rare, f"each operation and each trouble at least {ENOUGH} times" + (f"; not {', '.join(rare)}" if rare else "")))
    return (*gates, *planted_gate({record.facts["bug"]: record.found["found"] for record in planted}))


def _notes(programs: Sequence[Record], wrong: Sequence[Record]) -> tuple[str, ...]:
    if not programs or wrong:
        return ()
    ops = sum(record.found["ops"] for record in programs)
    return (
        f"0 disagreements in {ops} operations of {len(programs)} programs, each from an empty disk on: a program of this make that disagrees is "
        f"rarer than {upper_bound(len(programs)):.2%} (one-sided exact 95%). Two supervisors at once are not among the operations: the run's lock, "
        "for which the study writers races, lets one in at a time.",
    )
