"""What the records of `failures` show: what was tried, in which phase it struck, what came of it, and planted bugs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any

from ecrl_cli.config.studies import Failures
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.studies.frame.result import Column, Findings, Table, planted_gate, upper_bound
from ecrl_cli.studies.frame.study import Record

OUTCOMES = ("valid", "hung", "left", "exit", "invalid", "unknown", "differs", "idle")
# The phases that a recorded study must have hit, each so often; and how many planned failures, two per run, make one.
PHASES = ("boundary", "forward", "backward", "optimizer", "capture", "save", "start", "rendezvous", "load", "wall")
HITS, RECORDED = 20, 1000
_SETUPS = {"strategy": "write strategy", "mode": "write mode", "layout": "layout", "world_size": "ranks", "model": "model"}


def findings(config: Failures, records: Sequence[Record]) -> Findings:
    runs = [record for record in records if record.facts["arm"] == "random"]
    planted = [record for record in records if record.facts["arm"] == "planted"]
    tables = (
        by("strategy", "write strategy", runs, lambda record: [record.facts["strategy"]]),
        by("mode", "write mode", runs, lambda record: [record.facts["mode"]]),
        by("ranks", "ranks", runs, lambda record: [f"{record.facts['world_size']}, {record.facts['model']}"]),
        by("kind", "kind of failure that struck", runs, lambda record: _unique(kind for kind, _ in record.found["fired"])),
        by("phase", "phase in which it struck", runs, lambda record: _unique(moment for _, moment in record.found["fired"])),
        by("who", "who was struck", runs, lambda record: _unique(map(who, record.facts["entries"]))),
        bad_table(runs),
        planted_table(planted),
    )
    return Findings(tuple(table for table in tables if table.rows), (), _gates(config, runs, planted), _notes(runs))


def _unique(found: Any) -> list[str]:
    return list(dict.fromkeys(found))


def who(entry: str) -> str:
    """Of one entry, in words."""
    ranks = entry.partition(":")[2].partition("*")[0].partition("%")[0]
    if not ranks:
        return "what its kind strikes"
    return "all ranks" if ranks == "all" else "two ranks" if "+" in ranks else "rank 0" if ranks == "0" else "another rank"


def by(name: str, label: str, runs: Sequence[Record], labels: Callable[[Record], list[str]], outcomes: Sequence[str] = OUTCOMES) -> Table:
    """How runs came out, by what `labels` gives of each; a run may count under several."""
    groups: dict[str, list[Record]] = {}
    for record in runs:
        for each in labels(record):
            groups.setdefault(each, []).append(record)
    rows = tuple({name: each, "n": len(found), **_counted(found, outcomes)} for each, found in sorted(groups.items()))
    columns = (Column(name, label), Column("n", "runs", "count"), *(Column(outcome, outcome, "count") for outcome in outcomes))
    return Table(f"by_{name}", f"Runs by {label}", columns, rows)


def _counted(runs: Sequence[Record], outcomes: Sequence[str]) -> dict[str, int]:
    counted = Counter(record.found["outcome"] for record in runs)
    return {outcome: counted[outcome] for outcome in outcomes}


def bad_table(runs: Sequence[Record]) -> Table:
    """Those that did not come out valid, with what runs them again."""
    keys = {"trial": "trial", "outcome": "outcome", "why": "why", "replay": "again", "alone": "the run alone"}
    bad = [record for record in runs if record.found["outcome"] != "valid"]
    rows = tuple({"trial": record.key} | {key: record.found[key] for key in keys if key != "trial"} for record in bad)
    return Table("failed", "Runs that did not come out valid", tuple(Column(*pair) for pair in keys.items()), rows)


def planted_table(planted: Sequence[Record]) -> Table:
    """Each bug, and what showed it."""
    rows = tuple({"bug": r.facts["bug"], **r.found, "answer": "found" if r.found["found"] else "NOT FOUND"} for r in planted)
    columns = (
        Column("bug", "a recovery with"),
        Column("answer", "answer"),
        Column("runs", "runs until then", "count"),
        Column("by", "what showed it"),
    )
    return Table("planted", "Is the study blind? Bugs planted into the recovery", columns, rows)


def valid_gate(runs: Sequence[Record]) -> Gate:
    """Every run came out valid; else the first that did not, with the command that runs it again."""
    bad = [record for record in runs if record.found["outcome"] != "valid"]
    first = ""
    if bad:
        found = bad[0].found
        first = f"; the first: {bad[0].key}: {found['outcome']}: {found['why']}: {found['replay']} (the run alone: {found['alone']})"
    return Gate("valid", bool(runs) and not bad, f"{len(runs) - len(bad)} of {len(runs)} runs ended valid, alike and clean{first}")


def _gates(config: Failures, runs: Sequence[Record], planted: Sequence[Record]) -> tuple[Gate, ...]:
    gates = [valid_gate(runs)]
    if 2 * config.trials >= RECORDED:
        hit = Counter(moment for record in runs for moment in _unique(moment for _, moment in record.found["fired"]))
        rare = [phase for phase in PHASES if hit[phase] < HITS]
        gates.append(Gate("phases", not rare, f"each phase hit in at least {HITS} runs" + (f"; not {', '.join(rare)}" if rare else "")))
    return (*gates, *planted_gate({record.facts["bug"]: record.found["found"] for record in planted}))


def _told(found: Iterable[Any]) -> str:
    return ", ".join(f"{what} {n}" for what, n in Counter(found).most_common())


def _notes(runs: Sequence[Record]) -> tuple[str, ...]:
    if not runs:
        return ()
    struck, attempts = sum(len(record.found["fired"]) for record in runs), sum(record.found["attempts"] for record in runs)
    fired = [each for record in runs for each in record.found["fired"]]
    took = [record.seconds for record in runs]
    notes = [
        f"{struck} failures struck in {len(runs)} runs, which took {attempts} attempts.",
        f"A run took {median(took):.1f} s in the middle and {max(took):.1f} s at most, with its verdict and what ran beside it.",
        f"by kind: {_told(kind for kind, _ in fired)}",
        f"by phase: {_told(moment for _, moment in fired)}",
        f"by who was planned: {_told(who(entry) for record in runs for entry in record.facts['entries'])}",
        *(f"runs by {label}: {_told(record.facts[key] for record in runs)}" for key, label in _SETUPS.items()),
        f"runs by outcome: {_told(record.found['outcome'] for record in runs)}",
    ]
    if all(record.found["outcome"] == "valid" for record in runs):
        notes.append(
            f"0 of {len(runs)} runs under two random failures lost or changed anything: the probability per such run is below "
            f"{upper_bound(len(runs)):.2%} (one-sided exact 95%). Nothing was lost: every run reached its target in the very state of its reference."
        )
    return tuple(notes)
