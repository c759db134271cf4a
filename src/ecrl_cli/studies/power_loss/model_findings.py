"""Results of the model arm: the matrix, the planted bugs, and the gates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ecrl_cli.config.studies import PowerLoss
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.studies.frame.result import Column, Figure, Findings, Series, Table
from ecrl_cli.studies.frame.study import Record
from ecrl_cli.studies.power_loss.model_cell import LOST, NEVER, OUTCOMES, broken
from ecrl_cli.studies.power_loss.model_disk import MODELS

DIRSYNC_STATES, ALL_STATES = 50_000, 500_000  # fewer distinct states prove too little
_SUMS = ("calls", "reachable", "built", "distinct", "moments", "exhausted", "examined", "recoveries")
_COUNTS = (*OUTCOMES, "half")

_COLUMNS = (
    Column("protocol", "protocol and mode"),
    Column("model", "model"),
    Column("calls", "calls", "count"),
    Column("reachable", "states reachable, at least", "number"),
    Column("built", "states built", "count"),
    Column("distinct", "distinct", "count"),
    Column("exhausted", "moments tried in full", "count"),
    Column("moments", "of moments", "count"),
    *(Column(name, name, "count") for name in OUTCOMES),
    Column("half", "half with a whole commit", "count"),
    Column("second", "states after a loss during recovery", "count"),
    Column("worse", "worse than before it", "count"),
)
_NOTE = (
    "A state is what a power loss after some call may leave; a distinct one is a tree of files, by content, with what had been begun and "
    "acknowledged, counted once per cell (workload, layout, mode, model): another cell may have it too. P: the process dies. O: names survive in "
    "order. X: what POSIX promises and no more. reachable counts every choice of the model, also where only a sample was tried. new: the step on "
    "its way, or the newest acknowledged, was recovered; previous: the newest acknowledged, while a newer one was on its way."
)


def findings(records: Sequence[Record], config: PowerLoss) -> Findings:
    cells = {arm: [record for record in records if record.facts["arm"] == arm] for arm in ("ours", "published", "planted")}
    rows = [row for arm in ("ours", "published") for mode in config.modes for model in MODELS if (row := _row(arm, mode, model, cells[arm]))]
    tables = [Table("model", "Every legal state after a power loss", _COLUMNS, tuple(rows), _NOTE), _by_workload(cells["ours"])]
    gates = [*_never(cells["ours"]), *_kept(cells["ours"], config), *_sees(rows, cells["published"], config), *_again(cells["ours"])]
    if cells["planted"]:
        tables.append(_planted_table(cells["planted"]))
        gates.append(_planted_gate(cells["planted"]))
    return Findings(tuple(tables), (_figure(rows),), tuple(gates), _notes(cells["ours"], cells["planted"]))


def model_classes(records: Sequence[Record]) -> dict[str, set[str]]:
    """The outcomes of each write mode in the model."""
    classes: dict[str, set[str]] = {}
    for record in records:
        if record.facts.get("arm") == "ours":
            classes.setdefault(record.facts["mode"], set()).update(record.found["outcomes"])
    return classes


def _row(arm: str, mode: str, model: str, cells: Iterable[Record]) -> dict[str, Any]:
    found = [record.found for record in cells if (record.facts["mode"], record.facts["model"]) == (mode, model)]
    if not found:
        return {}
    row: dict[str, Any] = {"protocol": mode if arm == "ours" else f"{arm} {mode}", "model": model} | _summed(found)
    second = [each["second"]["outcomes"] for each in found if "second" in each]
    if second:
        row |= {
            "second": sum(count for each in second for name, count in each.items() if name != "worse"),
            "worse": sum(each.get("worse", 0) for each in second),
        }
    return row


def _summed(found: Sequence[dict[str, Any]]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for each in found:
        counts.update(each["outcomes"])
    return {name: sum(each[name] for each in found) for name in _SUMS} | {name: counts[name] for name in _COUNTS}


def _by_workload(cells: Sequence[Record]) -> Table:
    """Losses under X only, by workload and layout."""
    columns = (Column("workload", "workload"), Column("layout", "layout"), Column("mode", "write mode"), *_COLUMNS[2:-2])
    rows = [
        {name: record.facts[name] for name in ("workload", "layout", "mode")} | _summed([record.found])
        for record in cells
        if record.facts["model"] == "X"
    ]
    return Table("model_workloads", "The strictest model (X) by workload", columns, tuple(rows))


def _planted_table(cells: Sequence[Record]) -> Table:
    columns = (
        Column("name", "planted bug"),
        Column("step", "step of the protocol that it breaks"),
        Column("found", "found"),
        Column("model", "model"),
        Column("outcome", "outcome"),
        Column("state", "by this state"),
        Column("tried", "states tried", "count"),
    )
    rows = [{"name": each.facts["name"], "step": each.facts["step"], **each.found, "found": "yes" if each.found["found"] else "no"} for each in cells]
    return Table("model_planted", "Bugs planted in the protocol, and the first state that gives each away", columns, tuple(rows))


def _planted_gate(cells: Sequence[Record]) -> Gate:
    missed = [record.facts["name"] for record in cells if not record.found["found"]]
    message = f"planted {len(cells) - len(missed)}/{len(cells)} found" + (f"; missed: {', '.join(missed)}" if missed else "")
    return Gate("model planted", not missed, message)


def _violations(cells: Sequence[Record]) -> list[str]:
    return [f"{record.key}: {example}" for record in cells for example in record.found["examples"]]


def _count(cells: Iterable[Record], names: Sequence[str]) -> int:
    return sum(record.found["outcomes"].get(name, 0) for record in cells for name in names)


def _distinct(cells: Iterable[Record]) -> int:
    return sum(record.found["distinct"] for record in cells)


def _never(cells: Sequence[Record]) -> list[Gate]:
    """Nothing silently wrong, untyped or hung in any mode, over enough states; no whole commit record on an incomplete checkpoint."""
    bad, tried = _count(cells, NEVER), _distinct(cells)
    wrong = f"{bad} of {tried} states (distinct within their cells) silently wrong, untyped or hung (0 in at least {ALL_STATES} is asked)"
    halves = _count(cells, ["half"])
    return [
        Gate("model never wrong", bad == 0 and tried >= ALL_STATES, wrong + _first(cells, bad)),
        Gate("model commits", halves == 0, f"{halves} states with a whole commit over half a checkpoint" + _first(cells, halves)),
    ]


def _kept(cells: Sequence[Record], config: PowerLoss) -> list[Gate]:
    """Gates on what each mode promises to keep."""
    process = [record for record in cells if record.facts["model"] == "P"]
    lost = _count(process, LOST)
    gates = [
        Gate("model process crash", lost == 0 and bool(process), f"{lost} states lose something when only the process dies" + _first(process, lost))
    ]
    if "atomic_nodirsync" in config.modes:
        ordered = [record for record in cells if (record.facts["mode"], record.facts["model"]) == ("atomic_nodirsync", "O")]
        deepest = max((record.found.get("deepest", 0) for record in ordered), default=0)
        message = f"atomic_nodirsync loses {deepest} acknowledged steps at most where names are lost in order (the unsynced tail: 1)"
        gates.append(Gate("model tail", deepest <= 1 and bool(ordered), message))
    if "atomic_dirsync" in config.modes:
        ours = [record for record in cells if record.facts["mode"] == "atomic_dirsync"]
        bad = sum(
            count for record in ours for name, count in record.found["outcomes"].items() if broken("atomic_dirsync", record.facts["model"], name)
        )
        tried = _distinct(ours)
        message = f"{bad} of {tried} states (distinct within their cells) break the promise (0 in at least {DIRSYNC_STATES} is asked)"
        gates.append(Gate("model atomic_dirsync", bad == 0 and tried >= DIRSYNC_STATES, message + _first(ours, bad)))
    return gates


def _first(cells: Sequence[Record], bad: int) -> str:
    found = _violations(cells) if bad else []
    return f"; {found[0]}" if found else ""


def _sees(rows: Sequence[dict[str, Any]], subjects: Sequence[Record], config: PowerLoss) -> list[Gate]:
    """Under model X the modes without syncs and the published protocol must lose acknowledged checkpoints; otherwise the model is blind."""
    gates = []
    for name in ("unsafe", "atomic_nodirsync", "published atomic_dirsync"):
        if name.removeprefix("published ") not in config.modes or (name.startswith("published") and not subjects):
            continue
        lost = sum(row[each] for row in rows for each in LOST if (row["protocol"], row["model"]) == (name, "X"))
        gates.append(Gate(f"model sees {name}", lost > 0, f"{name} loses acknowledged checkpoints in {lost} states under X"))
    return gates


def _again(cells: Sequence[Record]) -> list[Gate]:
    """Gates on interrupted recovery, and on recovery in real folders."""
    worse = [f"{record.key}: {example}" for record in cells for example in record.found["second"]["examples"]]
    count = sum(record.found["second"]["outcomes"].get("worse", 0) for record in cells)
    run = sum(record.found["second"]["run"] for record in cells)
    folders = [record.found["folders"] for record in cells if "folders" in record.found]
    rebuilt, differing = sum(each["rebuilt"] for each in folders), sum(each["differing"] for each in folders)
    other = [example for each in folders for example in each["different"]]
    second = f"{count} states worse after recovery itself was cut off, from {run} states" + (f"; {worse[0]}" if worse else "")
    same = f"{rebuilt - differing} of {rebuilt} states rebuilt in real folders are recovered from as in the model" + (
        f"; {other[0]}" if other else ""
    )
    return [Gate("model recovery", count == 0 and run > 0, second), Gate("model folders", differing == 0 and rebuilt > 0, same)]


def _figure(rows: Sequence[dict[str, Any]]) -> Figure:
    strict = [row for row in rows if row["model"] == "X"]
    seen = [name for name in OUTCOMES if any(row[name] for row in strict)]
    series = tuple(Series(name, tuple(row[name] / row["distinct"] for row in strict)) for name in seen)
    title, categories = "What recovery finds after a power loss (model X)", tuple(str(row["protocol"]) for row in strict)
    return Figure("model", title, "stacked", "protocol and mode", "share of distinct states", series, categories)


def _notes(cells: Sequence[Record], planted: Sequence[Record]) -> tuple[str, ...]:
    if not cells:
        return ()
    notes = []
    for mode in dict.fromkeys(record.facts["mode"] for record in cells):
        strict = [record.found for record in cells if (record.facts["mode"], record.facts["model"]) == (mode, "X")]
        moments, full = sum(each["moments"] for each in strict), sum(each["exhausted"] for each in strict)
        lost = sum(each["outcomes"].get(name, 0) for each in strict for name in LOST)
        tried = sum(each["distinct"] for each in strict)
        how = "every state reachable" if full == moments else "the states reachable"
        proof = (
            "A proof over the model, not a probability" if full == moments else "Enumerated where that was possible, else a seeded sample of states"
        )
        notes.append(
            f"{mode}: {how} under X for these workloads, exhaustively for {full} of {moments} crash points: {lost} of {tried} distinct states "
            f"lose what was acknowledged. {proof}: no interval."
        )
    examined, recoveries = (sum(each.found[name] for each in cells) for name in ("examined", "recoveries"))
    notes.append(
        f"The real integrity check examined {examined} different checkpoints and the real recovery chose from {recoveries} different sets of them: "
        "both are functions of these, so a state that differs only elsewhere was not recovered from again."
    )
    if planted:
        found = sum(record.found["found"] for record in planted)
        notes.append(f"Planted bugs: {found} of {len(planted)} found. A zero above is worth what this shows.")
    notes.append("Not covered: drives that lie about their cache, damage to bytes at rest, and renames between folders (the protocol has none).")
    return tuple(notes)
