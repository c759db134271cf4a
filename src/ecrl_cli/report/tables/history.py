"""The tables and records of a history: what each arm does now and what changed, the builds, every
arm in every build.
"""

from __future__ import annotations

from typing import Any

from ecrl_cli.report.formats import change, date, listed, short
from ecrl_cli.report.model.contrast import Contrast
from ecrl_cli.report.model.history import MISSING, SHOWN, UNFINISHED, Build, History, Track
from ecrl_cli.report.tables.records import Record, gates_document
from ecrl_cli.report.tables.runs import ARM, KINDS, SUITE
from ecrl_cli.report.tables.table import Cell, Column, Row, Table, Value, mean_cell, records_table
from ecrl_cli.verify.verdict import INVALID, UNKNOWN, VALID

STATUS_WORDS = {
    VALID: "valid",
    INVALID: "invalid",
    UNKNOWN: "unknown",
    MISSING: "not verified",
    UNFINISHED: "not finished",
}
HISTORY_CSV, BUILDS_CSV = "history.csv", "builds.csv"
MOST_DIFFERENCES = 6
_LABELS = {
    "goodput": "goodput",
    "stall_per_checkpoint_s": "stall per checkpoint",
    "durable_write_per_checkpoint_s": "save, to durable",
}
# The measures that are held against the build before on the page; all of SHOWN are in history.csv.
COMPARED = ("goodput", "stall_per_checkpoint_s", "durable_write_per_checkpoint_s")


def now_table(history: History) -> Table:
    """Every arm in the newest build, the failing ones first, against the build before that has
    it.
    """
    columns = (
        SUITE,
        ARM,
        Column("verdict", facet="verdict"),
        Column("since", help="the build from which on it has this verdict"),
        *(Column("before", help="the verdict in the build before"), Column("runs", "count")),
        *(
            part
            for measure in COMPARED
            for part in (
                Column(_LABELS[measure], KINDS[measure]),
                Column(f"{_LABELS[measure]}, change", "change"),
            )
        ),
    )
    note = (
        "Change: mean of ratios over pairs of one suite and seed, with its 95% interval by"
        " Student's t; bold where it can be told from noise. It is not given where a suite failed a"
        " gate in one of the two builds."
    )
    rows = tuple(_now(history, track, len(columns)) for track in history.tracks)
    return Table(
        f"The newest build, {history.newest.name}, against the one before",
        columns,
        rows,
        note,
        HISTORY_CSV,
    )


def _now(history: History, track: Track, width: int) -> Row:
    point, before = track.now, track.before
    head: Row = (track.suite, Cell(track.arm, arm=track.arm))
    if point is None:
        last = f"last in {history.builds[track.last].name}" if track.last is not None else None
        return (*head, "not run", None, last, *[None] * (width - 5))
    status = Cell(point.status, text=STATUS_WORDS[point.status], badge=point.status)
    earlier = (
        Cell(before.status, text=STATUS_WORDS[before.status], badge=before.status)
        if before
        else "new"
    )
    compared: list[Value] = []
    for measure in COMPARED:
        compared += [
            mean_cell(point.mean(measure), strong=True),
            change_cell(history.change(track, measure)),
        ]
    return (*head, status, history.builds[track.since].name, earlier, len(point.runs), *compared)


def wrong_table(history: History) -> Table:
    """Table of the arms that are not valid in the newest build: since when and why."""
    columns = (
        SUITE,
        ARM,
        Column("verdict", facet="verdict"),
        Column("since"),
        Column("what is wrong"),
    )
    rows = tuple(
        (
            track.suite,
            Cell(track.arm, arm=track.arm),
            Cell(track.now.status, text=STATUS_WORDS[track.now.status], badge=track.now.status),
            *(history.builds[track.since].name, short(track.now.why, 300)),
        )
        for track in history.tracks
        if track.now and track.now.status != VALID
    )
    return Table("What is wrong", columns, rows, file=HISTORY_CSV)


def change_cell(found: Contrast | None) -> Value:
    """A relative change with its interval; of a single pair it says so."""
    if found is None or found.pair.mean_of_ratios is None:
        return None
    if found.interval is None:
        return Cell(found.effect, small="one pair")
    low, high = found.interval
    small = "all pairs alike" if found.alike else f"{change(low)} to {change(high)}"
    return Cell(found.effect, small=small, strong=found.distinguishable)


def builds_table(history: History) -> Table:
    """The builds, newest first: when, which code, which machine, how their runs ended, and what
    differs around them from the one before.
    """
    columns = (
        Column("build"),
        Column("started (UTC)"),
        Column("commit"),
        Column("machine"),
        Column("runs", "count"),
        *(
            Column(STATUS_WORDS[status], "count")
            for status in (VALID, INVALID, UNFINISHED, UNKNOWN, MISSING)
        ),
        Column("changed around it"),
    )
    rows = tuple(
        (
            build.name,
            date(build.when) or None,
            listed(list(build.commits)) if build.commits else None,
            *(listed(list(build.machines)) if build.machines else None, len(build.runs)),
            *(build.count(status) for status in (VALID, INVALID, UNFINISHED, UNKNOWN, MISSING)),
            around(history, at) or None,
        )
        for at, build in reversed(list(enumerate(history.builds)))
    )
    return Table("The builds, newest first", columns, rows, file=BUILDS_CSV)


def around(history: History, at: int) -> str:
    """The differences of its environment from that of the build before, in words."""
    found = history.around(at)
    texts = [f"{d.key} {_value(d.theirs)} to {_value(d.ours)}" for d in found[:MOST_DIFFERENCES]]
    rest = len(found) - len(texts)
    return "; ".join([*texts, *([f"and {rest} more"] if rest else [])])


def _value(values: tuple[str, ...]) -> str:
    return (
        short(
            " / ".join(
                value[:12] if len(value) >= 32 and value[:32].isalnum() else value
                for value in values
            ),
            60,
        )
        or "none"
    )


def history_rows(history: History) -> list[Record]:
    """history.csv: every arm of every suite in every build that has it, oldest first."""
    return [
        _record(history, track, at, build)
        for at, build in enumerate(history.builds)
        for track in sorted(history.tracks, key=lambda track: track.key)
        if track.points[at]
    ]


def _record(history: History, track: Track, at: int, build: Build) -> Record:
    point = track.points[at]
    assert point is not None
    row: Record = {
        "build": build.name,
        "started": date(build.when),
        "commit": " / ".join(build.commits),
        "machine": " / ".join(build.machines),
        "suite": track.suite,
        "arm": track.arm,
        "runs": len(point.runs),
        "finished": sum(bool(run.counted) for run in point.runs),
        "verdict": STATUS_WORDS[point.status],
        "why": point.why,
    }
    for measure in SHOWN:
        found = point.mean(measure)
        values = (found.mean, found.low, found.high) if found else (None, None, None)
        row |= dict(zip((measure, f"{measure}_low", f"{measure}_high"), values, strict=True))
    older = next((number for number in reversed(range(at)) if track.points[number]), None)
    row["held_against"] = history.builds[older].name if older is not None else None
    for measure in COMPARED:
        row |= {
            f"{measure}_change_{key}": value
            for key, value in _changed(history.change(track, measure, at)).items()
        }
    return row


def _changed(found: Contrast | None) -> Record:
    if found is None:
        return dict.fromkeys(("pairs", "mean", "low", "high", "told_apart"))
    low, high = found.interval or (None, None)
    mean = found.effect if found.pair.mean_of_ratios else None
    return {
        "pairs": found.pair.n,
        "mean": mean,
        "low": low,
        "high": high,
        "told_apart": found.distinguishable,
    }


def build_rows(history: History) -> list[Record]:
    """builds.csv: the builds, oldest first."""
    return [
        {
            "build": build.name,
            "started": date(build.when),
            "commit": " / ".join(build.commits),
            "machine": " / ".join(build.machines),
            "runs": len(build.runs),
            **{
                STATUS_WORDS[status].replace(" ", "_"): build.count(status)
                for status in (VALID, INVALID, UNFINISHED, UNKNOWN, MISSING)
            },
            "changed_around": around(history, at),
        }
        for at, build in enumerate(history.builds)
    ]


def history_document(history: History, headline: str, sentences: list[str]) -> dict[str, Any]:
    """history.json."""
    return {
        "schema_version": 1,
        "headline": headline,
        "sentences": sentences,
        "notes": list(history.notes),
        "builds": build_rows(history),
        "arms": history_rows(history),
        "gates": gates_document(history.newest.comparison.gates),
        "failing": [
            {"suite": track.suite, "arm": track.arm, "since": history.builds[track.since].name}
            for track in history.failing
        ],
    }


def csv_tables(history: History) -> dict[str, Table]:
    return {
        HISTORY_CSV: records_table(history_rows(history), ("build",)),
        BUILDS_CSV: records_table(build_rows(history), ("build",)),
    }
