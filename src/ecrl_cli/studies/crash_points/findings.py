"""The results of the crashes: the published table beside ours, outcomes, reasons, figures 3 and 4, and the planted bugs found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ecrl_cli.config.strategies import STRATEGIES
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.studies.crash_points.crash_targets import AFTER_MODEL, NONE, PHASES, PUBLISHED
from ecrl_cli.studies.crash_points.trial import violation
from ecrl_cli.studies.frame.gates import named, none_bad
from ecrl_cli.studies.frame.result import PROPORTION_COLUMNS, Column, Figure, Series, Table, proportion, upper_bound
from ecrl_cli.studies.frame.store_fixture import write_mode
from ecrl_cli.studies.frame.study import Record, Results
from ecrl_cli.studies.frame.tables import Group, TableSpec, cell, fact, mutants_table, outcomes, size, value
from ecrl_cli.studies.frame.tables import count as count_of

OUTCOMES = ("new", "previous", "detected", "lost_ack", "lost_all", "silent_wrong", "untyped", "hung")


class Records:
    """The records by kind of trial."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.all = records
        self.points = [r for r in records if r.facts["kind"] == "point"]
        self.calls = [r for r in records if r.facts["kind"] == "call"]
        self.kills = [r for r in records if r.facts["kind"] == "kill"]
        self.planted = [r for r in records if r.facts["kind"] == "planted"]
        self.crashes = [*self.points, *self.calls, *self.kills]
        self.modes = list(dict.fromkeys(r.facts["mode"] for r in self.crashes))


def group(found: Records, mode: str, point: str) -> list[Record]:
    return [r for r in found.points if (r.facts["mode"], r.facts["layout"], r.facts["point"]) == (mode, "group", point)]


def count(records: Sequence[Record], outcome: str) -> int:
    return sum(r.found["outcome"] == outcome for r in records)


def whole(records: Sequence[Record]) -> int:
    return count(records, "new") + count(records, "previous")


# The published conditions, and one after the commit, where the new checkpoint is expected.
CONDITIONS = {"none": NONE, **PUBLISHED, "after_root_sync": "after_root_sync"}
REMAINS = ("size mismatch", "missing parts", "missing manifest", "manifest cut off", "missing commit", "commit cut off", "other")


def atomicity(results: Results) -> Figure:
    """Published Figure 3."""
    return _shares(results, "atomicity", "The group being saved is usable after the kill (95% Wilson)", lambda mine: count(mine, "new"))


def recovery(results: Results) -> Figure:
    return _shares(results, "recovery", "A whole checkpoint, new or previous, is recovered after the kill (95% Wilson)", whole)


def _shares(results: Results, name: str, title: str, counted: Callable[[Sequence[Record]], int]) -> Figure:
    series, found = [], Records(results.records)
    for mode in found.modes:
        shares = [proportion(counted(mine), len(mine)) for mine in (group(found, mode, point) for point in CONDITIONS.values())]
        if all(share["n"] for share in shares):
            rate, low, high = (tuple(share[key] for share in shares) for key in ("rate", "wilson_low", "wilson_high"))
            series.append(Series(mode, rate, low=low, high=high))
    return Figure(name, title, "bars", "killed at", "share of groups", tuple(series), categories=tuple(CONDITIONS))


def breakdown(results: Results) -> Figure:
    """Published figure 4: by state of the files, for groups written in unsafe mode."""
    mine = [r for r in results.of("point") if r.facts["mode"] == "unsafe" and r.facts["layout"] == "group" and r.found["rejected"]]
    points = sorted({r.facts["point"] for r in mine}, key=PHASES.index)
    counted = Counter((r.facts["point"], rejected["remains"]) for r in mine for rejected in r.found["rejected"])
    shares = {point: sum(counted[point, kind] for kind in REMAINS) for point in points}
    kinds = [kind for kind in REMAINS if any(counted[point, kind] for point in points)]
    series = tuple(Series(kind, tuple(counted[point, kind] / shares[point] for point in points)) for kind in kinds)
    title = "Why unsafe groups were refused"
    return Figure("reasons", title, "stacked", "killed at", "share of refused groups", series, categories=tuple(points))


def phases(results: Results) -> Figure:
    found = Records(results.records)
    counted = phase_counts(found)
    series = tuple(Series(mode, tuple(float(counts[mode]) for counts in counted.values())) for mode in found.modes) if counted else ()
    return Figure("phases", "Where the random kills fell", "bars", "last point passed", "kills", series, categories=tuple(counted))


def phase_counts(found: Records) -> dict[str, dict[str, int]]:
    """Kills per mode by the last point passed, in protocol order."""
    counted = Counter((r.found["passed"], r.facts["mode"]) for r in found.kills)
    hit = [phase for phase in PHASES if any(counted[phase, mode] for mode in found.modes)]
    return {phase: {mode: counted[phase, mode] for mode in found.modes} for phase in hit}


# Usable groups of all, and the interval as printed (its text says Wilson, its numbers are Clopper-Pearson's).
PRINTED = {
    ("atomic", "none"): (400, 400, 0.991, 1.0),
    ("unsafe", "after_model"): (0, 400, 0.0, 0.009),
    ("unsafe", "before_manifest"): (0, 10, 0.0, 0.308),
    ("unsafe", "manifest_partial"): (0, 10, 0.0, 0.308),
    ("unsafe", "before_commit"): (0, 10, 0.0, 0.308),
}


def _published(results: Results) -> Table:
    found = Records(results.records)
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
    """The published study wrote from one process and killed no atomic writer."""
    key = ("unsafe" if mode == "unsafe" else "atomic", condition) if STRATEGIES.of(strategy).writes_in_step else ("", "")
    ok, total, low, high = PRINTED.get(key, (None, None, None, None))
    return {"published_ok": ok, "published_n": total, "published_low": low, "published_high": high}


def _reasons(results: Results) -> Table:
    counted = Counter(
        (r.facts["mode"], r.facts["layout"], r.facts["point"], rejected["remains"], rejected["layer"], rejected["reason"])
        for r in results.of("point")
        for rejected in r.found["rejected"]
    )
    keys = ("mode", "layout", "point", "remains", "layer", "reason")
    rows = tuple(dict(zip(keys, key, strict=True)) | {"n": count} for key, count in counted.items())
    labels = ("write mode", "layout", "killed at", "state of the files", "refused by layer", "reason")
    columns = (*(Column(key, label) for key, label in zip(keys, labels, strict=True)), Column("n", "trials", "count"))
    note = (
        "The integrity check reads the commit record first and names that; the state of the files stands beside it, in the words of published "
        "Figure 4 where it has one. Its manifest/commit mismatch cannot come from a kill here: COMMIT is begun when MANIFEST is whole."
    )
    return Table("reasons", "Why half a checkpoint was refused", columns, rows, note)


def _phases(results: Results) -> Table:
    found = Records(results.records)
    rows = tuple({"phase": phase, **counts} for phase, counts in phase_counts(found).items())
    columns = (Column("phase", "last point passed"), *(Column(mode, mode, "count") for mode in found.modes))
    note = "Behind the last point of a save comes the look at its predecessor by the next one."
    return Table("phases", "Where the random kills fell", columns, rows, note)


def _by_protocol(record: Record) -> tuple[Any, ...]:
    facts = record.facts
    point = facts["point"]
    return facts["mode"], facts["layout"], facts["strategy"], -1 if point == NONE else PHASES.index(point)


def _refused(record: Record) -> bool:
    return bool(record.found["rejected"])


def _bound(kills: Group) -> float | None:
    return upper_bound(len(kills)) if whole(kills) == len(kills) else None


def _answer(record: Record) -> str:
    return ("found" if record.found["found"] else "NOT FOUND") if record.found["seen"] else "not visible to a kill by design"


def _shown(record: Record) -> str:
    return f"{record.found['wrong']}, killed {record.found['at']}" if record.found.get("found") else str(record.facts["unseen"])


_OUTCOMES = outcomes({outcome: outcome.replace("_", " ") for outcome in OUTCOMES})
_REFUSED = count_of("refused", "refused a half one", _refused)

TABLES = (
    _published,
    TableSpec(
        "outcomes",
        "What recovery finds after a death at each point",
        ("point",),
        by=(fact("mode", "write mode"), fact("layout", "layout"), fact("strategy", "strategy"), fact("point", "killed at"), fact("survivor", "due")),
        columns=(size("n", "trials"), _OUTCOMES, _REFUSED),
        note="due: the new checkpoint from the moment on which it counts (the rename; in unsafe the commit record's last byte), the previous one "
        "before.",
        sort=_by_protocol,
    ),
    _reasons,
    TableSpec(
        "calls",
        "Killed before each call of a save",
        ("call",),
        by=(fact("mode", "write mode"), fact("layout", "layout")),
        columns=(size("n", "calls"), _OUTCOMES),
        note="Once before each call of one save that changes something (mkdir, create, write, fsync, rename, symlink, unlink, rmdir): all there "
        "are, so no interval.",
    ),
    TableSpec(
        "kills",
        "Killed at a random moment",
        ("kill",),
        by=(fact("mode", "write mode"),),
        columns=(
            size("n", "kills"),
            _OUTCOMES,
            _REFUSED,
            cell("phases", "phases hit", "count", lambda kills: len({r.found["passed"] for r in kills})),
            cell("bound", "a loss per kill is rarer than (one-sided exact 95%)", "share", _bound),
        ),
        note="Saves back to back, SIGKILL uniformly 0.5 to 20 ms after the first; layouts in turn.",
    ),
    _phases,
    mutants_table(
        (
            fact("bug", "planted bug"),
            fact("step", "step of the protocol"),
            value("answer", "answer", _answer),
            value("crashes", "crashes until then", lambda r: r.found.get("crashes"), "count"),
            value("wrong", "what showed it, or why nothing can", _shown),
        ),
        "Is the study blind? Bugs planted in the store",
    ),
)


def gates(results: Results) -> Iterator[Gate]:
    """The gates. Each names the trials that miss it."""
    found = Records(results.records)
    went_on = [*found.points, *found.calls]  # after a random kill no further save is made
    groups = [r for r in found.crashes if r.facts["layout"] == "group" and write_mode(r.facts["mode"]).atomic]  # other modes may leave partial ones
    visible = [r for r in found.planted if r.found["seen"]]
    missed = [r for r in visible if not r.found["found"]]
    yield none_bad("silent_wrong", found.crashes, _ended("silent_wrong"), "trials recovered something that was never saved")
    yield none_bad("lost_ack", found.crashes, _ended("lost_ack", "lost_all"), "trials lost an acknowledged checkpoint")
    yield none_bad("recovered", found.crashes, _ended("detected", "untyped", "hung"), "trials stopped the recovery")
    wrong_one = "trials recovered the wrong one of the new and the previous checkpoint"
    yield none_bad("survivor", found.points, lambda r: r.found["outcome"] != r.facts["survivor"], wrong_one)
    yield none_bad("again", went_on, lambda r: r.found["again"] or r.found["left"], "trials stood in the way of the next attempt")
    yield none_bad("hit", found.crashes, lambda r: not r.found["hit"], "trials were not killed where they should be")
    if groups:
        yield none_bad("half", groups, lambda r: r.found["half"], "trials left half a group under a name that counts in an atomic mode")
    if found.planted:
        yield Gate("planted", bool(visible) and not missed, f"planted {len(visible) - len(missed)}/{len(visible)} found{named(missed)}")


def _ended(*ends: str) -> Callable[[Record], bool]:
    return lambda record: record.found["outcome"] in ends


FIGURES = (atomicity, recovery, breakdown, phases)


def notes(results: Results, in_memory: bool) -> tuple[str, ...]:
    found = Records(results.records)
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
