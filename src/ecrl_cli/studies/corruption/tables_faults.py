"""Tables of the arms that damage bytes: published, random, exhaustive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ecrl_cli.checkpoint.format.names import LATEST, LAYERS
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.metrics.statistics import wilson
from ecrl_cli.studies.corruption.counts import summed
from ecrl_cli.studies.corruption.faults import PUBLISHED as FAULTS
from ecrl_cli.studies.corruption.layer_ablation import MECHANISMS
from ecrl_cli.studies.corruption.published import CONTROL, NOOP
from ecrl_cli.studies.frame.result import PROPORTION_COLUMNS, Column, Figure, Findings, Series, Table, proportion, upper_bound
from ecrl_cli.studies.frame.study import Record

LEAST_EXHAUSTIVE = 30_000
# Table 3: detected of 400, then by load error, content digest, file SHA-256.
PUBLISHED = {"bitflip": (400, 7, 387, 400), "zerorange": (399, 29, 370, 399), "truncate": (400, 400, 0, 400), CONTROL: (0, 0, 0, 0)}
PUBLISHED_TRIALS = 400

_SEEN = (Column("fault", "fault"), Column("injected", "injected", "count"), Column("noops", "changed nothing", "count"))
_LAYERS = tuple(Column(layer, f"first seen by {layer}", "count") for layer in LAYERS)
_DETECTED = tuple(Column(c.key, {"k": "detected", "n": "effective (of no fault: all)"}.get(c.key, c.label), c.kind) for c in PROPORTION_COLUMNS)
_COUNTED = _DETECTED[:2]  # enumerated cases have no interval


def published_findings(records: Sequence[Record]) -> Findings:
    by_fault = {fault: [r for r in records if r.facts["fault"] == fault] for fault in (*FAULTS, CONTROL, NOOP)}
    rows = [_published_row(fault, found) for fault, found in by_fault.items() if found]
    first = [{"fault": fault} | _layers(r.found["layer"] for r in found) for fault, found in by_fault.items() if found]
    columns = (
        *_SEEN,
        *_DETECTED,
        *(Column(name, f"seen by {name}", "count") for name in MECHANISMS),
        Column("twice", "seen by two or more", "count"),
        Column("published_k", "published detected", "count"),
        Column("published_n", "published trials", "count"),
        *(Column(f"published_{name}", f"published {name}", "count") for name in MECHANISMS),
    )
    note = (
        "A file is drawn first, each as likely, then a place in it: MANIFEST is hit as often as the model. load: JSON, schema and headers, "
        "without any hash; digest: tensor by tensor, where the file loads; sha: of the file, where the record that names it loads. Each on its own."
    )
    table = Table("detection", "Detection of corruption by fault and mechanism", columns, tuple(rows), note)
    layers = Table("first-layer", "The layer of the integrity check that refuses first", (Column("fault", "fault"), *_LAYERS), tuple(first))
    return Findings((table, layers), (_figure(rows),), _published_gates(records), _missed_note(rows))


def _published_row(fault: str, found: list[Record]) -> dict[str, Any]:
    """A trial of the control has no injection; it counts as detected if rejected."""
    tried = [r for r in found if r.found["changed"] or fault in (CONTROL, NOOP)]
    seen = Counter(name for r in tried for name in r.found["mechanisms"])
    row = {"fault": fault, "injected": 0 if fault == CONTROL else len(found), "noops": 0 if fault == CONTROL else _unchanged(found)}
    row |= proportion(sum(r.found["outcome"] == "detected" for r in tried), len(tried))
    row |= {name: seen[name] for name in MECHANISMS} | {"twice": sum(len(r.found["mechanisms"]) > 1 for r in tried)}
    if fault not in PUBLISHED:
        return row
    k, *by = PUBLISHED[fault]
    return row | {"published_k": k, "published_n": PUBLISHED_TRIALS} | {f"published_{name}": n for name, n in zip(MECHANISMS, by, strict=True)}


def _unchanged(found: list[Record]) -> int:
    return sum(not r.found["changed"] for r in found)


def _layers(names: Any) -> dict[str, int]:
    counted = Counter(names)
    return {layer: counted[layer] for layer in LAYERS}


def _figure(rows: list[dict[str, Any]]) -> Figure:
    shown = [row for row in rows if row["fault"] in PUBLISHED]
    other = [wilson(PUBLISHED[row["fault"]][0], PUBLISHED_TRIALS) for row in shown]
    ours = Series("here", *(tuple(row["rate"] or 0.0 for row in shown), ()), *_bounds([(row["wilson_low"], row["wilson_high"]) for row in shown]))
    theirs = tuple(PUBLISHED[row["fault"]][0] / PUBLISHED_TRIALS for row in shown)
    series = (ours, Series("published", theirs, (), *_bounds([(each.low, each.high) for each in other])))
    title = "Detection rates of effective corruption, Wilson 95% intervals"
    return Figure("detection", title, "bars", "fault", "share detected", series, tuple(row["fault"] for row in shown))


def _bounds(pairs: list[tuple[float | None, float | None]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return tuple(low or 0.0 for low, _ in pairs), tuple(high or 0.0 for _, high in pairs)


def _published_gates(records: Sequence[Record]) -> tuple[Gate, ...]:
    effective = [r for r in records if r.found["changed"]]
    undetected = [r.key for r in effective if r.found["outcome"] == "silent_wrong"]
    refused = [r.key for r in records if not r.found["changed"] and r.found["outcome"] == "detected"]
    noops = [r for r in records if not r.found["changed"] and r.facts["fault"] != CONTROL]
    blind = [fault for fault in FAULTS if not any(r.facts["fault"] == fault for r in effective)]
    return (
        gate("published: detected", [*undetected, *(f"no effective {fault}" for fault in blind)], f"{len(effective)} effective faults, all detected"),
        gate(
            "published: no false positive", refused, f"{len(records) - len(effective)} unchanged checkpoints, {len(noops)} of them injected, accepted"
        ),
        gate("published: typed", [r.key for r in records if r.found["outcome"] == "untyped"], "no exception came out of the integrity check"),
        gate("published: no-ops", [] if noops else ["nothing was injected that changes nothing"], f"{len(noops)} zero ranges over zeros"),
    )


def _missed_note(rows: list[dict[str, Any]]) -> tuple[str, ...]:
    faults = [row for row in rows if row["fault"] in FAULTS]
    unchanged, found, tried = (sum(row[key] for row in faults) for key in ("noops", "k", "n"))
    accepted = (
        f"{unchanged} of the injections over the three faults changed no byte and must be accepted; the published study counted one such as missed."
    )
    if not found == tried > 0:
        return (accepted,)
    return accepted, f"With none missed, the share of such faults that would be is below {upper_bound(tried):.2%} (one-sided, exact, 95%)."


def random_findings(records: Sequence[Record]) -> Findings:
    table, total = _sliced("random", "Random faults in a checkpoint of realistic content, by kind", records, lambda r: str(r.facts["fault"]))
    note = f"Random faults: {total['detected']} of {total['injections'] - total['noops']} effective ones detected."
    idle = [row["fault"] for row in table.rows if row["n"] == 0 and row["injected"] >= _FEW]
    injected = Gate("random: injected", not idle, f"faults that never changed a byte: {', '.join(idle) or 'none'}")
    return Findings((table,), (), (*_sliced_gates("random", total), injected), (note,))


_FEW = 10  # injections of one kind; with fewer, all may have no effect


def exhaustive_findings(records: Sequence[Record]) -> Findings:
    """No decision reads the pointer: its rows say that recovery finds the newest checkpoint whatever it contains."""
    table, total = _sliced(
        "exhaustive", "Every place of a small checkpoint, by file", records, lambda r: f"{r.facts['layout']}: {r.facts['file']}", _COUNTED
    )
    enough = total["injections"] >= LEAST_EXHAUSTIVE
    counted = Gate("exhaustive: enough", enough, f"{total['injections']} mutations, at least {LEAST_EXHAUSTIVE} are asked for")
    note = (
        f"Every place: {total['injections']} mutations (each bit and length of the records, first and last bit of each byte and every 7th length of "
        f"the parts), {total['noops']} of them of {LATEST}, which decides nothing; enumerated, so no interval."
    )
    return Findings((table,), (), (*_sliced_gates("exhaustive", total), counted), (note,))


def _sliced(name: str, title: str, records: Sequence[Record], key: Any, shown: tuple[Column, ...] = _DETECTED) -> tuple[Table, dict[str, Any]]:
    rows = []
    for label in dict.fromkeys(key(r) for r in records):
        total = summed(r.found for r in records if key(r) == label)
        row = {"fault": label, "injected": total["injections"], "noops": total["noops"], "untyped": total["untyped"]}
        rows.append(row | proportion(total["detected"], total["injections"] - total["noops"]) | _layers(Counter(total["layers"]).elements()))
    columns = (*_SEEN, *shown, Column("untyped", "exceptions", "count"), *_LAYERS)
    kept = tuple({column.key: row[column.key] for column in columns} for row in rows)
    return Table(name, title, columns, kept), summed(r.found for r in records)


def _sliced_gates(arm: str, total: dict[str, Any]) -> tuple[Gate, ...]:
    effective, first = total["injections"] - total["noops"], total["first"]
    short = effective - total["detected"]
    return (
        Gate(
            f"{arm}: detected",
            short == 0 < effective,
            f"{total['detected']} of {effective} effective; first miss: {first.get('silent_wrong', 'none')}",
        ),
        Gate(
            f"{arm}: no-ops",
            total["noops_refused"] == 0,
            f"{total['noops']} that changed nothing; first refused: {first.get('noops_refused', 'none')}",
        ),
        Gate(
            f"{arm}: typed", total["untyped"] == 0, f"{total['untyped']} exceptions out of the integrity check; first: {first.get('untyped', 'none')}"
        ),
    )


def gate(name: str, failures: Sequence[str], kept: str) -> Gate:
    """Passed without failures; otherwise it names the first."""
    return Gate(name, not failures, f"{len(failures)}, first: {failures[0]}" if failures else kept)
