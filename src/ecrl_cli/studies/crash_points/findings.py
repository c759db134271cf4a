"""The results of the crashes: the published table beside ours, outcomes, reasons, figures 3 and 4,
and the planted bugs found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ecrl_cli.config.schema import WRITE_MODES
from ecrl_cli.config.strategies import STRATEGIES
from ecrl_cli.errors import plural
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.studies.crash_points.crash_targets import AFTER_MODEL, NONE, PHASES, PUBLISHED
from ecrl_cli.studies.crash_points.trial import violation
from ecrl_cli.studies.frame.gates import named, none_bad
from ecrl_cli.studies.frame.published import published
from ecrl_cli.studies.frame.result import (
    Figure,
    ResultTable,
    Series,
    shares_series,
    upper_bound,
)
from ecrl_cli.studies.frame.store_fixture import write_mode
from ecrl_cli.studies.frame.study import Record, TrialResults
from ecrl_cli.studies.frame.tables import (
    Group,
    TableSpec,
    cell,
    fact,
    grouped,
    item,
    items,
    mutants_table,
    outcomes,
    share,
    size,
    table,
    value,
)
from ecrl_cli.studies.frame.tables import count as count_of

OUTCOMES = (
    "new",
    "previous",
    "detected",
    "lost_ack",
    "lost_all",
    "silent_wrong",
    "untyped",
    "hung",
)


def crashes(results: TrialResults) -> list[Record]:
    """Every trial in which a process was killed."""
    return results.of("point", "call", "kill")


def modes(results: TrialResults) -> list[str]:
    return list(dict.fromkeys(r.facts["mode"] for r in crashes(results)))


def count(records: Sequence[Record], outcome: str) -> int:
    return sum(r.found["outcome"] == outcome for r in records)


def whole(records: Sequence[Record]) -> int:
    return count(records, "new") + count(records, "previous")


# The published conditions, and one after the commit, where the new checkpoint is expected.
CONDITIONS = {"none": NONE, **PUBLISHED, "after_root_sync": "after_root_sync"}
_CONDITION_AT = {point: condition for condition, point in CONDITIONS.items()}
REMAINS = (
    "size mismatch",
    "missing parts",
    "missing manifest",
    "manifest cut off",
    "missing commit",
    "commit cut off",
    "other",
)


def atomicity(results: TrialResults) -> Figure:
    """Published Figure 3."""
    return _shares(
        results,
        "atomicity",
        "The group being saved is usable after the kill (95% Wilson)",
        lambda mine: count(mine, "new"),
    )


def recovery(results: TrialResults) -> Figure:
    return _shares(
        results,
        "recovery",
        "A whole checkpoint, new or previous, is recovered after the kill (95% Wilson)",
        whole,
    )


def _in_group(record: Record) -> bool:
    return bool(record.facts["layout"] == "group")


def _shares(
    results: TrialResults, name: str, title: str, counted: Callable[[Sequence[Record]], int]
) -> Figure:
    series = []
    tried = grouped(
        filter(_in_group, results.of("point")), lambda r: (r.facts["mode"], r.facts["point"])
    )
    for mode in modes(results):
        groups = [tried.get((mode, point), []) for point in CONDITIONS.values()]
        if all(groups):
            series.append(shares_series(mode, [(counted(mine), len(mine)) for mine in groups]))
    of_groups = "share of groups"
    return Figure(name, title, "bars", "killed at", of_groups, tuple(series), tuple(CONDITIONS))


def breakdown(results: TrialResults) -> Figure:
    """Published figure 4: by state of the files, for groups written in unsafe mode."""
    mine = [
        r
        for r in results.of("point")
        if r.facts["mode"] == "unsafe" and r.facts["layout"] == "group" and r.found["rejected"]
    ]
    points = sorted({r.facts["point"] for r in mine}, key=PHASES.index)
    counted = Counter(
        (r.facts["point"], rejected["remains"]) for r in mine for rejected in r.found["rejected"]
    )
    shares = {point: sum(counted[point, kind] for kind in REMAINS) for point in points}
    kinds = [kind for kind in REMAINS if any(counted[point, kind] for point in points)]
    series = tuple(
        Series(kind, tuple(counted[point, kind] / shares[point] for point in points))
        for kind in kinds
    )
    title, share_of = "Why unsafe groups were refused", "share of refused groups"
    return Figure("reasons", title, "stacked", "killed at", share_of, series, tuple(points))


def phases(results: TrialResults) -> Figure:
    counted = phase_counts(results)
    series = tuple(
        Series(mode, tuple(float(counts[mode]) for counts in counted.values()))
        for mode in (modes(results) if counted else ())
    )
    title, passed = "Where the random kills fell", "last point passed"
    return Figure("phases", title, "bars", passed, "kills", series, tuple(counted))


def phase_counts(results: TrialResults) -> dict[str, dict[str, int]]:
    """Kills per mode by the last point passed, in protocol order."""
    counted, of = (
        Counter((r.found["passed"], r.facts["mode"]) for r in results.of("kill")),
        modes(results),
    )
    hit = [phase for phase in PHASES if any(counted[phase, mode] for mode in of)]
    return {phase: {mode: counted[phase, mode] for mode in of} for phase in hit}


# by kind of writer and condition: usable groups, of all, and the interval
PRINTED = published("crash-points")


def _printed(place: int) -> Callable[[Group], Any]:
    """The published study wrote from one process and killed no atomic writer."""

    def read(group: Group) -> Any:
        facts = group[0].facts
        if not STRATEGIES.of(facts["strategy"]).writes_in_step:
            return None
        of_writer = PRINTED["unsafe" if facts["mode"] == "unsafe" else "atomic"]
        return of_writer.get(_CONDITION_AT[facts["point"]], (None,) * 4)[place]

    return read


_PUBLISHED = TableSpec(
    "published",
    "Killed at the published points: what becomes of the group being saved",
    ("point",),
    by=(
        value(
            "condition",
            "condition",
            lambda r: f"{r.facts['mode']}@{_CONDITION_AT[r.facts['point']]}",
        ),
        fact("strategy", "strategy"),
    ),
    columns=(
        share(lambda mine: count(mine, "new"), len, "OK: the group being saved is usable"),
        cell(
            "previous", "recovered the previous one", "count", lambda mine: count(mine, "previous")
        ),
        cell("whole", "recovered a whole one", "share", lambda mine: whole(mine) / len(mine)),
        cell("published_ok", "published OK", "count", _printed(0)),
        cell("published_n", "published of", "count", _printed(1)),
        cell("published_low", "published 95% low", "share", _printed(2)),
        cell("published_high", "published 95% high", "share", _printed(3)),
    ),
    note=(
        "Published Table 2 beside ours, group layout. Its 0% says that the group in flight was"
        " killed before its commit, which is so by construction, in every mode; whether recovery"
        " works is said by the last two columns of ours. Its after_model is a model file cut in"
        f" half and a writer that goes on; here the process dies at {AFTER_MODEL}. The published"
        " intervals are Clopper-Pearson's. The published study killed no atomic writer."
    ),
    where=lambda r: _in_group(r) and r.facts["point"] in _CONDITION_AT,
    sort=lambda r: (
        WRITE_MODES.index(r.facts["mode"]),
        list(_CONDITION_AT).index(r.facts["point"]),
    ),
)


_REASON = {
    "mode": "write mode",
    "layout": "layout",
    "point": "killed at",
    "remains": "state of the files",
    "layer": "refused by layer",
    "reason": "reason",
}


def _reasons(results: TrialResults) -> ResultTable:
    counted = Counter(
        tuple((r.facts | rejected)[key] for key in _REASON)
        for r in results.of("point")
        for rejected in r.found["rejected"]
    )
    rows = [dict(zip(_REASON, key, strict=True)) | {"n": n} for key, n in counted.items()]
    note = (
        "The integrity check reads the commit record first and names that; the state of the files"
        " stands beside it, in the words of published Figure 4 where it has one. Its"
        " manifest/commit mismatch cannot come from a kill here: COMMIT is begun when MANIFEST is"
        " whole."
    )
    columns = (*items("text", **_REASON), item("n", "trials", "count"))
    return table("reasons", "Why half a checkpoint was refused", columns, rows, note)


def _phases(results: TrialResults) -> ResultTable:
    rows = [{"phase": phase, **counts} for phase, counts in phase_counts(results).items()]
    columns = (
        item("phase", "last point passed"),
        *items("count", **{mode: mode for mode in modes(results)}),
    )
    note = "Behind the last point of a save comes the look at its predecessor by the next one."
    return table("phases", "Where the random kills fell", columns, rows, note)


def _by_protocol(record: Record) -> tuple[Any, ...]:
    facts = record.facts
    point = facts["point"]
    return (
        facts["mode"],
        facts["layout"],
        facts["strategy"],
        -1 if point == NONE else PHASES.index(point),
    )


def _bound(kills: Group) -> float | None:
    return upper_bound(len(kills)) if whole(kills) == len(kills) else None


def _answer(record: Record) -> str:
    return (
        ("found" if record.found["found"] else "NOT FOUND")
        if record.found["seen"]
        else "not visible to a kill by design"
    )


def _shown(record: Record) -> str:
    return (
        f"{record.found['wrong']}, killed {record.found['at']}"
        if record.found.get("found")
        else str(record.facts["unseen"])
    )


_OUTCOMES = outcomes({outcome: outcome.replace("_", " ") for outcome in OUTCOMES})
_REFUSED = count_of("refused", "refused a half one", lambda r: r.found["rejected"])

TABLES = (
    _PUBLISHED,
    TableSpec(
        "outcomes",
        "What recovery finds after a death at each point",
        ("point",),
        by=(
            fact("mode", "write mode"),
            fact("layout", "layout"),
            fact("strategy", "strategy"),
            fact("point", "killed at"),
            fact("survivor", "due"),
        ),
        columns=(size("n", "trials"), _OUTCOMES, _REFUSED),
        note=(
            "due: the new checkpoint from the moment on which it counts (the rename; in unsafe the"
            " commit record's last byte), the previous one before."
        ),
        sort=_by_protocol,
    ),
    _reasons,
    TableSpec(
        "calls",
        "Killed before each call of a save",
        ("call",),
        by=(fact("mode", "write mode"), fact("layout", "layout")),
        columns=(size("n", "calls"), _OUTCOMES),
        note=(
            "Once before each call of one save that changes something (mkdir, create, write, fsync,"
            " rename, symlink, unlink, rmdir): all there are, so no interval."
        ),
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
            cell(
                "phases",
                "phases hit",
                "count",
                lambda kills: len({r.found["passed"] for r in kills}),
            ),
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


def gates(results: TrialResults) -> Iterator[Gate]:
    """The gates. Each names the trials that miss it."""
    points, killed = results.of("point"), crashes(results)
    went_on = results.of("point", "call")  # after a random kill no further save is made
    # other modes may leave partial ones
    groups = [r for r in killed if _in_group(r) and write_mode(r.facts["mode"]).atomic]
    planted = results.of("planted")
    visible = [r for r in planted if r.found["seen"]]
    missed = [r for r in visible if not r.found["found"]]
    yield none_bad(
        "silent_wrong",
        killed,
        _ended("silent_wrong"),
        "trials recovered something that was never saved",
    )
    yield none_bad(
        "lost_ack", killed, _ended("lost_ack", "lost_all"), "trials lost an acknowledged checkpoint"
    )
    yield none_bad(
        "recovered", killed, _ended("detected", "untyped", "hung"), "trials stopped the recovery"
    )
    wrong_one = "trials recovered the wrong one of the new and the previous checkpoint"
    yield none_bad(
        "survivor", points, lambda r: r.found["outcome"] != r.facts["survivor"], wrong_one
    )
    yield none_bad(
        "again",
        went_on,
        lambda r: r.found["again"] or r.found["left"],
        "trials stood in the way of the next attempt",
    )
    yield none_bad(
        "hit", killed, lambda r: not r.found["hit"], "trials were not killed where they should be"
    )
    if groups:
        yield none_bad(
            "half",
            groups,
            lambda r: r.found["half"],
            "trials left half a group under a name that counts in an atomic mode",
        )
    if planted:
        yield Gate(
            "planted",
            bool(visible) and not missed,
            f"planted {len(visible) - len(missed)}/{len(visible)} found{named(missed)}",
        )


def _ended(*ends: str) -> Callable[[Record], bool]:
    return lambda record: record.found["outcome"] in ends


FIGURES = (atomicity, recovery, breakdown, phases)


def notes(results: TrialResults, in_memory: bool) -> tuple[str, ...]:
    place = "in memory (tmpfs)" if in_memory else "beside their records"
    notes = [
        (
            f"The trials lay {place}. A killed process leaves the page cache to the system, so no"
            " trial here can tell a mode that syncs from one that does not, and the kind of disk"
            " plays no part: see the study power-loss."
        ),
    ]
    kills = results.of("kill")
    lost = [r for r in kills if violation(r.found)]
    each = min((sum(r.facts["mode"] == mode for r in kills) for mode in modes(results)), default=0)
    if each and not lost:
        notes.append(
            f"0 of {plural(len(kills), 'kill')} at a random moment lost an acknowledged checkpoint"
            f" or brought back a wrong one: with {each} in each mode, the probability per such kill"
            f" is below {upper_bound(each):.2%} (one-sided exact 95%) in each."
        )
    return tuple(notes)
