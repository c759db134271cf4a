"""What the crashes show: the published table beside ours, outcomes, reasons, and what the study itself can see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ecrl_cli.studies.crash_points.counts import OUTCOMES, Records, count, group, whole
from ecrl_cli.studies.crash_points.figures import CONDITIONS, atomicity, breakdown, phase_counts, phases, recovery
from ecrl_cli.studies.crash_points.gates import gates
from ecrl_cli.studies.crash_points.points import AFTER_MODEL, NONE, PHASES
from ecrl_cli.studies.crash_points.search import violation
from ecrl_cli.studies.frame.result import PROPORTION_COLUMNS, Column, Findings, Table, proportion, upper_bound
from ecrl_cli.studies.frame.study import Record

# Usable groups of all, and the interval as printed (its text says Wilson, its numbers are Clopper-Pearson's).
PRINTED = {
    ("atomic", "none"): (400, 400, 0.991, 1.0),
    ("unsafe", "after_model"): (0, 400, 0.0, 0.009),
    ("unsafe", "before_manifest"): (0, 10, 0.0, 0.308),
    ("unsafe", "manifest_partial"): (0, 10, 0.0, 0.308),
    ("unsafe", "before_commit"): (0, 10, 0.0, 0.308),
}


def findings(records: Sequence[Record], *, in_memory: bool) -> Findings:
    found = Records(records)
    tables = (_published(found), _outcomes(found), _reasons(found), _calls(found), _kills(found), _phases(found), _planted(found))
    figures = (atomicity(found), recovery(found), breakdown(found), phases(found))
    return Findings(
        tables=tuple(table for table in tables if table.rows),
        figures=tuple(figure for figure in figures if figure.series),
        gates=gates(found),
        notes=_notes(found, in_memory),
    )


def _published(found: Records) -> Table:
    rows = []
    for mode in found.modes:
        for condition, point in CONDITIONS.items():
            tried = group(found, mode, point)
            for strategy in dict.fromkeys(r.facts["strategy"] for r in tried):
                mine = [r for r in tried if r.facts["strategy"] == strategy]
                row = {"condition": f"{mode}@{condition}", "strategy": strategy, **proportion(count(mine, "new"), len(mine))}
                rows.append(row | {"previous": count(mine, "previous"), "whole": whole(mine) / len(mine)} | _printed(mode, condition, strategy))
    columns = (
        Column("condition", "condition"),
        Column("strategy", "strategy"),
        Column("k", "OK: the group being saved is usable", "count"),
        *PROPORTION_COLUMNS[1:],
        Column("previous", "recovered the previous one", "count"),
        Column("whole", "recovered a whole one", "share"),
        Column("published_ok", "published OK", "count"),
        Column("published_n", "published of", "count"),
        Column("published_low", "published 95% low", "share"),
        Column("published_high", "published 95% high", "share"),
    )
    note = (
        "Published Table 2 beside ours, group layout. Its 0% says that the group in flight was killed before its commit, which is so by "
        "construction, in every mode; whether recovery works is said by the last two columns of ours. Its after_model is a model file cut in "
        f"half and a writer that goes on; here the process dies at {AFTER_MODEL}. The published intervals are Clopper-Pearson's. "
        "The published study killed no atomic writer."
    )
    return Table("published", "Killed at the published points: what becomes of the group being saved", columns, tuple(rows), note)


def _printed(mode: str, condition: str, strategy: str) -> dict[str, Any]:
    """The study in print wrote from one process, and killed no atomic writer."""
    key = ("unsafe" if mode == "unsafe" else "atomic", condition) if strategy == "blocking" else ("", "")
    ok, total, low, high = PRINTED.get(key, (None, None, None, None))
    return {"published_ok": ok, "published_n": total, "published_low": low, "published_high": high}


def _outcome_columns() -> tuple[Column, ...]:
    return tuple(Column(outcome, outcome.replace("_", " "), "count") for outcome in OUTCOMES)


def _tally(records: Sequence[Record]) -> dict[str, Any]:
    refused = sum(bool(r.found["rejected"]) for r in records)
    return {"n": len(records), "refused": refused} | {outcome: count(records, outcome) for outcome in OUTCOMES}


def _outcomes(found: Records) -> Table:
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in found.points:
        groups.setdefault(tuple(record.facts[key] for key in ("mode", "layout", "strategy", "point", "survivor")), []).append(record)
    keys = ("mode", "layout", "strategy", "point", "survivor")
    rows = tuple(dict(zip(keys, group, strict=True)) | _tally(records) for group, records in sorted(groups.items(), key=_by_protocol))
    labels = (("mode", "write mode"), ("layout", "layout"), ("strategy", "strategy"), ("point", "killed at"), ("survivor", "due"))
    columns = (
        *(Column(*label) for label in labels),
        Column("n", "trials", "count"),
        *_outcome_columns(),
        Column("refused", "refused a half one", "count"),
    )
    note = (
        "due: the new checkpoint from the moment on which it counts (the rename; in unsafe the commit record's last byte), the previous one before."
    )
    return Table("outcomes", "What recovery finds after a death at each point", columns, rows, note)


def _by_protocol(item: tuple[tuple[str, ...], list[Record]]) -> tuple[str, str, str, int]:
    mode, layout, strategy, point, _ = item[0]
    return mode, layout, strategy, -1 if point == NONE else PHASES.index(point)


def _reasons(found: Records) -> Table:
    counted = Counter(
        (r.facts["mode"], r.facts["layout"], r.facts["point"], rejected["remains"], rejected["layer"], rejected["reason"])
        for r in found.points
        for rejected in r.found["rejected"]
    )
    keys = ("mode", "layout", "point", "remains", "layer", "reason")
    rows = tuple(dict(zip(keys, key, strict=True)) | {"n": count} for key, count in counted.items())
    labels = ("write mode", "layout", "killed at", "state of the files", "refused by layer", "reason")
    columns = (*(Column(key, label) for key, label in zip(keys, labels, strict=True)), Column("n", "trials", "count"))
    note = (
        "The guard asks for the commit record first and names that; the state of the files stands beside it, in the words of published Figure 4 "
        "where it has one. Its manifest/commit mismatch cannot come from a kill here: COMMIT is begun when MANIFEST is whole."
    )
    return Table("reasons", "Why half a checkpoint was refused", columns, rows, note)


def _calls(found: Records) -> Table:
    rows = []
    for mode in found.modes:
        for layout in dict.fromkeys(r.facts["layout"] for r in found.calls):
            if mine := [r for r in found.calls if (r.facts["mode"], r.facts["layout"]) == (mode, layout)]:
                rows.append({"mode": mode, "layout": layout, **_tally(mine)})
    columns = (Column("mode", "write mode"), Column("layout", "layout"), Column("n", "calls", "count"), *_outcome_columns())
    note = (
        "Once before each call of one save that changes something (mkdir, create, write, fsync, rename, symlink, unlink, rmdir): all there are, "
        "so no interval."
    )
    return Table("calls", "Killed before each call of a save", columns, tuple(rows), note)


def _kills(found: Records) -> Table:
    rows = []
    for mode in found.modes:
        if mine := [r for r in found.kills if r.facts["mode"] == mode]:
            phases = len({r.found["passed"] for r in mine})
            rows.append({"mode": mode, **_tally(mine), "phases": phases, "bound": upper_bound(len(mine)) if whole(mine) == len(mine) else None})
    columns = (
        Column("mode", "write mode"),
        Column("n", "kills", "count"),
        *_outcome_columns(),
        Column("refused", "refused a half one", "count"),
        Column("phases", "phases hit", "count"),
        Column("bound", "a loss per kill is rarer than (one-sided exact 95%)", "share"),
    )
    note = "Saves back to back, SIGKILL uniformly 0.5 to 20 ms after the first; layouts in turn."
    return Table("kills", "Killed at a random moment", columns, tuple(rows), note)


def _phases(found: Records) -> Table:
    rows = tuple({"phase": phase, **counts} for phase, counts in phase_counts(found).items())
    columns = (Column("phase", "last point passed"), *(Column(mode, mode, "count") for mode in found.modes))
    note = "Behind the last point of a save comes the look at its predecessor by the next one."
    return Table("phases", "Where the random kills fell", columns, rows, note)


def _planted(found: Records) -> Table:
    rows = tuple(
        {
            "bug": r.facts["bug"],
            "step": r.facts["step"],
            "answer": ("found" if r.found["found"] else "NOT FOUND") if r.found["seen"] else "not visible to a kill by design",
            "crashes": r.found.get("crashes"),
            "wrong": f"{r.found['wrong']}, killed {r.found['at']}" if r.found.get("found") else r.facts["unseen"],
        }
        for r in found.planted
    )
    labels = (("bug", "planted bug"), ("step", "step of the protocol"), ("answer", "answer"))
    columns = (
        *(Column(*label) for label in labels),
        Column("crashes", "crashes until then", "count"),
        Column("wrong", "what showed it, or why nothing can"),
    )
    return Table("planted", "Is the study blind? Bugs planted in the store", columns, rows)


def _notes(found: Records, in_memory: bool) -> tuple[str, ...]:
    place = "in memory (tmpfs)" if in_memory else "beside their records"
    notes = [
        f"The trials lay {place}. A killed process leaves the page cache to the system, so no trial here can tell a mode that syncs from one that "
        "does not, and the kind of disk plays no part: see the study power-loss.",
    ]
    lost = [r for r in found.kills if violation(r.found)]
    each = min((sum(r.facts["mode"] == mode for r in found.kills) for mode in found.modes), default=0)
    if each and not lost:
        notes.append(
            f"0 of {len(found.kills)} kills at a random moment lost an acknowledged checkpoint or brought back a wrong one: with {each} in each "
            f"mode, the probability per such kill is below {upper_bound(each):.2%} (one-sided exact 95%) in each."
        )
    return tuple(notes)
