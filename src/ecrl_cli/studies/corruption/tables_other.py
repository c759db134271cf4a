"""Tables of the structural, recovery, clean, stock-loader and planted-bug arms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ecrl_cli.metrics.gates import Gate
from ecrl_cli.studies.corruption.structural import row_of
from ecrl_cli.studies.corruption.tables_faults import gate
from ecrl_cli.studies.frame.result import PROPORTION_COLUMNS, Column, Findings, Table, proportion, upper_bound
from ecrl_cli.studies.frame.study import Record, Trial
from ecrl_cli.studies.mutants.layers import BACKED, MUTANTS

_OURS = "the integrity check, in the random arm"


def _columns(k: str) -> tuple[Column, ...]:
    return tuple(Column(c.key, k if c.key == "k" else c.label, c.kind) for c in PROPORTION_COLUMNS)


def structural_findings(records: Sequence[Record]) -> Findings:
    groups: dict[tuple[str, str], list[Record]] = {}
    for r in records:
        groups.setdefault((str(r.facts["layout"]), str(r.facts["row"])), []).append(r)
    columns = (
        *(Column(name, name) for name in ("layout", "damage")),
        *(Column("expected", "expected verdict"), Column("found", "other verdicts found")),
        *_columns("as expected")[:2],
    )
    table = Table(
        "structural", "Files and folders moved, missing, linked and forged", columns, tuple(_structural_row(k, v) for k, v in groups.items())
    )
    wrong = [r.key for r in records if not r.found["as_expected"]]
    untyped = [r.key for r in records if r.found["untyped"]]
    gates = (
        gate("structural: as expected", wrong, f"{len(records)} trials of {len(groups)} kinds ended as the table of verdicts says"),
        gate("structural: typed", untyped, "no exception came out of integrity check or recovery"),
    )
    return Findings((table,), (), gates)


def _structural_row(key: tuple[str, str], found: list[Record]) -> dict[str, Any]:
    row = row_of(Trial(found[0].key, found[0].facts))
    expected = _verdict(row.layer, row.recovers, row.missed)
    others = {_verdict(r.found["layer"], r.found["recovered"], r.found["missed"]) for r in found if not r.found["as_expected"]}
    shown = {
        "layout": key[0],
        "damage": key[1],
        "expected": expected + ("" if row.exact else "; altered, which no integrity check without a key sees"),
    }
    return shown | {"found": "; ".join(sorted(others)) or None, "k": sum(r.found["as_expected"] for r in found), "n": len(found)}


def _verdict(layer: str, recovers: int | None, missed: Sequence[int]) -> str:
    said = f"refused: {layer}" if layer else "accepted"
    found = "nothing is recovered" if recovers is None else f"step {recovers} is recovered"
    return f"{said}; {found}" + (f"; the records miss {', '.join(map(str, missed))}" if missed else "")


def recovery_findings(records: Sequence[Record]) -> Findings:
    rows = []
    for layout in dict.fromkeys(str(r.facts["layout"]) for r in records):
        for damaged in sorted({int(r.facts["damaged"]) for r in records}):
            found = [r for r in records if (r.facts["layout"], r.facts["damaged"]) == (layout, damaged)]
            rows.append({"layout": layout, "damaged": damaged} | proportion(sum(map(_recovered, found)), len(found)))
    columns = (Column("layout", "layout"), Column("damaged", "newest damaged", "count"), *_columns("newest whole one recovered"))
    wrong = [r.key for r in records if not _recovered(r)]
    kept = f"{len(records)} recoveries found the newest whole one, named what they passed over, and touched nothing"
    return Findings((Table("recovery", "The newest k of four damaged", columns, tuple(rows)),), (), (gate("recovery", wrong, kept),))


def _recovered(r: Record) -> bool:
    return bool(r.found["recovered"] == r.found["expected"] and r.found["outcome"] == "previous" and r.found["named"] and r.found["untouched"])


def clean_findings(records: Sequence[Record]) -> Findings:
    rows, refused, verified = [], 0, 0
    for key in dict.fromkeys((str(r.facts["layout"]), str(r.facts["copied"])) for r in records):
        found = [r for r in records if (r.facts["layout"], r.facts["copied"]) == key]
        bad, count = sum(r.found["refused"] for r in found), sum(r.found["verified"] for r in found)
        rows.append({"layout": key[0], "copied": key[1]} | proportion(bad, count))
        refused, verified = refused + bad, verified + count
    columns = (Column("layout", "layout"), Column("copied", "half of them copied by"), *_columns("refused"))
    first = next((r.found["first"][0] for r in records if r.found["first"]), "none")
    passed = Gate("clean: no false positive", refused == 0 < verified, f"{refused} of {verified} clean checkpoints refused; first: {first}")
    note = f"False positives: {refused} of {verified} clean verifications" + (
        "" if refused else f", a rate below {upper_bound(verified):.3%} (one-sided)."
    )
    table = Table("clean", "Verifications of checkpoints that nobody touched", columns, tuple(rows))
    return Findings((table,), (), (passed,), (note,))


def anchor_findings(records: Sequence[Record]) -> Findings:
    rows = []
    for loader in dict.fromkeys(str(r.facts.get("loader", _OURS)) for r in records):
        found = [r.found for r in records if r.facts.get("loader", _OURS) == loader]
        # the random arm's names for the same three
        names = {"raised": "detected", "silent_wrong": "silent_wrong", "harmless": "noops"} if loader == _OURS else {}
        total = {name: sum(each[names.get(name, name)] for each in found) for name in ("raised", "silent_wrong", "harmless")}
        flips = sum(total.values())
        rows.append({"loader": loader, "flips": flips} | total | proportion(total["silent_wrong"], flips))
    columns = (
        Column("loader", "loader"),
        *(Column("flips", "flips", "count"), Column("raised", "refused", "count"), Column("harmless", "tensors all the same", "count")),
        *_columns("silently wrong"),
    )
    note = "One flipped bit anywhere in what the loader's own save wrote (128 KiB and 64 KiB of float32); wrong: other tensors, and no error."
    blind = [row["loader"] for row in rows if row["raised"] + row["silent_wrong"] == 0]
    gates = (gate("anchors: effective", blind, "the flips had an effect on every stock loader"),)
    return Findings((Table("anchors", "Stock loaders under one flipped bit", columns, tuple(rows), note),), (), gates)


def planted_findings(records: Sequence[Record]) -> Findings:
    by_name = {str(r.facts["mutant"]): r.found for r in records}
    rows = [_planted_row(name, found, by_name) for name, found in by_name.items()]
    columns = (
        Column("mutant", "left out of the integrity check"),
        *(Column(name, label, "count") for name, label in (("cases", "cases"), ("undetected", "let through"), ("untyped", "exceptions"))),
        *(Column("elsewhere", "caught by another layer"), Column("first", "first let through"), Column("answer", "answer")),
    )
    lost = [str(row["mutant"]) for row in rows if row["answer"] == "NOT FOUND"]
    count = len(rows) - len(lost)
    gates = (Gate("planted", not lost, f"planted {count}/{len(rows)} found" + (f"; not found: {', '.join(lost)}" if lost else "")),)
    note = "backed: the layer behind it catches all of it, and both left out together let through more than that layer left out alone."
    return Findings(
        (Table("planted", "Integrity checks with a layer left out, and whether the study sees it", columns, tuple(rows), note),), (), gates
    )


def _planted_row(name: str, found: dict[str, Any], by_name: dict[str, dict[str, Any]]) -> dict[str, Any]:
    elsewhere = ", ".join(f"{layer}: {count}" for layer, count in found["elsewhere"].items())
    shown = {key: found[key] for key in ("cases", "undetected", "untyped")}
    first = found["first"][0] if found["first"] else None
    return {"mutant": name, **shown, "elsewhere": elsewhere or None, "first": first, "answer": _answer(name, found, by_name)}


def _answer(name: str, found: dict[str, Any], by_name: dict[str, dict[str, Any]]) -> str:
    """found: something wrong passes (or an exception is raised). backed: see the table's note. A pair must let through more than its second layer
    alone."""
    back = BACKED.get(name.partition(" + ")[0])
    if name in MUTANTS and (bad(found) or back is None):
        return "found" if bad(found) else "NOT FOUND"
    pair, alone = by_name.get(f"{name.partition(' + ')[0]} + {back}"), by_name.get(str(back))
    if pair is None or alone is None or bad(pair) <= bad(alone):
        return "NOT FOUND"
    if name in MUTANTS:
        return "backed" if found["elsewhere"] else "NOT FOUND"
    return "found"


def bad(found: dict[str, Any]) -> int:
    return int(found["undetected"]) + int(found["untyped"])
