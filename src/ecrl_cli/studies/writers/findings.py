"""What the records of the study show: tables, gates, and what they do not cover."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ecrl_cli.metrics.gates import Gate
from ecrl_cli.studies.frame.result import PROPORTION_COLUMNS, Column, Findings, Table, planted_gate, proportion, upper_bound
from ecrl_cli.studies.frame.study import Record
from ecrl_cli.studies.writers import fencing, flaky_nfs, races

_ENDS = ("saved", "fenced", "conflict")


def findings(records: Sequence[Record]) -> Findings:
    arms = {arm: [record for record in records if record.facts["arm"] == arm] for arm in {record.facts["arm"] for record in records}}
    met, of = [*arms.get("fence", []), *arms.get("publish", [])], arms.get
    tables = [_races(of("race", [])), _meetings(met), _clocks(of("clock", [])), _remote(of("remote", [])), _readers(of("reader", []))]
    tables += [_source(of("source", [])), _planted(of("planted", []))]
    gates = (
        _all("one_winner", of("race", []), lambda r: races.sound(r.found), "races with one winner, and a loser that was told (exit 8)"),
        _all("fenced", met, lambda r: fencing.sound(r.found, r.facts), "interleavings that lost and overwrote nothing"),
        _all("told_why", met, lambda r: not fencing.unexplained(r.found), "late writers that ended as Fenced, as CheckpointConflict, or saved"),
        _all("clocks", of("clock", []), lambda r: not r.found["differs"], "stories under false clocks and mtimes with the same decisions"),
        _all("late_names", of("remote", []), lambda r: flaky_nfs.sound(r.found), "faults of a network file system after which nothing was lost"),
        _all("readers", of("reader", []), lambda r: not r.found["misled"], "looks beside a writer that were not misled"),
        _all("no_clock_decides", of("source", []), lambda r: not r.found["offences"], "deciding modules that look at no clock and no mtime"),
        *_found(of("planted", [])),
    )
    return Findings(tuple(table for table in tables if table.rows), (), gates, _notes(of("race", []), met))


def _all(name: str, records: Sequence[Record], good: Callable[[Record], bool], what: str) -> Gate:
    count = sum(map(good, records))
    bad = next((record.key for record in records if not good(record)), "")
    return Gate(name, bool(records) and count == len(records), f"{count} of {len(records)} {what}" + (f"; not {bad}" if bad else ""))


def _found(records: Sequence[Record]) -> tuple[Gate, ...]:
    return planted_gate({record.facts["bug"]: record.found["shown"] for record in records})


def _races(records: Sequence[Record]) -> Table:
    columns = (
        Column("left", "what a predecessor left in the lock's file"),
        Column("won", "one winner", "count"),
        Column("told", "loser told", "count"),
        Column("freed", "got it afterwards", "count"),
        *PROPORTION_COLUMNS,
    )
    rows = []
    for left in dict.fromkeys(record.facts["left"] for record in records):
        here = [record.found for record in records if record.facts["left"] == left]
        row = {"left": left, "won": sum(found["winners"] == 1 for found in here), "told": sum(found["names_holder"] for found in here)}
        rows.append(row | {"freed": sum(found["freed"] for found in here), **proportion(sum(not races.sound(found) for found in here), len(here))})
    note = f"One winner in {races.KILLED_EVERY} is killed instead of letting go. The proportion counts races that went otherwise than promised."
    return Table("races", "Two supervisors start at once", columns, tuple(rows), note)


def _meetings(records: Sequence[Record]) -> Table:
    columns = (
        *(Column("arm", "arm"), Column("mode", "write mode"), Column("layout", "layout"), Column("newer", "the newer writer")),
        *(Column("n", "interleavings", "count"), *(Column(end, f"late writer: {end}", "count") for end in _ENDS)),
        *(Column("refused", "late writer: another error", "count"), Column("bad", "lost, overwritten or untyped", "count")),
    )
    rows = []
    for cell in dict.fromkeys(tuple(record.facts[key] for key in ("arm", "mode", "layout", "newer")) for record in records):
        here = [record for record in records if tuple(record.facts[key] for key in ("arm", "mode", "layout", "newer")) == cell]
        row: dict[str, Any] = dict(zip(("arm", "mode", "layout", "newer"), cell, strict=True)) | {"n": len(here)}
        row |= {end: sum(record.found["old"] == end for record in here) for end in _ENDS}
        row["refused"] = sum(fencing.unexplained(record.found) for record in here)
        rows.append(row | {"bad": sum(not fencing.sound(record.found, record.facts) for record in here)})
    note = "Every call of a save at which another writer can make a difference; no interval: they are all there are. publish: one attempt, no claim."
    return Table("interleavings", "A writer that stands still while another one claims and commits", columns, tuple(rows), note)


def _clocks(records: Sequence[Record]) -> Table:
    rows = _counted(records, "jump", lambda record: bool(record.found["differs"]))
    return Table("clocks", "Decisions under false clocks and scrambled mtimes", _columns("jump", "the clock"), rows, "count: stories that differ.")


def _remote(records: Sequence[Record]) -> Table:
    rows = _counted(records, "fault", lambda record: not flaky_nfs.sound(record.found))
    note = "Each call that the fault concerns, once, in a save and in a recovery. count: anything acknowledged lost, or the next save refused."
    return Table("late_names", "A file system across a network", _columns("fault", "fault"), rows, note)


def _readers(records: Sequence[Record]) -> Table:
    rows = _counted(records, "saves", lambda record: bool(record.found["misled"]))
    note = "Few saves: at each call of a look. Many: a thread beside a reader that looks again and again; "
    looks = sum(record.found["looks"] for record in records if record.facts["at"] < 0)
    return Table("readers", "A reader beside a writer", _columns("saves", "saves meanwhile", "count"), rows, f"{note}{looks} looks.")


def _columns(key: str, label: str, kind: str = "text") -> tuple[Column, ...]:
    return (Column(key, label, kind), Column("bad", "count", "count"), Column("n", "of", "count"))


def _counted(records: Sequence[Record], key: str, bad: Callable[[Record], bool]) -> tuple[dict[str, Any], ...]:
    values = dict.fromkeys(record.facts[key] for record in records)
    here = {value: [record for record in records if record.facts[key] == value] for value in values}
    return tuple({key: value, "bad": sum(map(bad, found)), "n": len(found)} for value, found in here.items())


def _source(records: Sequence[Record]) -> Table:
    columns = (Column("module", "module that decides"), Column("offences", "looks at a clock or an mtime"))
    rows = tuple({"module": record.facts["module"], "offences": "; ".join(record.found["offences"]) or "no"} for record in records)
    return Table("source", "Read off the source", columns, rows)


def _planted(records: Sequence[Record]) -> Table:
    columns = (Column("bug", "planted bug"), Column("shown", "trials that show it", "count"), Column("tried", "of", "count"))
    return Table("planted", "Planted bugs", columns, tuple({"bug": record.facts["bug"], **record.found} for record in records))


def _notes(raced: Sequence[Record], met: Sequence[Record]) -> tuple[str, ...]:
    notes = [
        "Fencing holds where claims follow one another, which the lock of the run directory sees to; two claims in the same instant on a file "
        "system without locks are not covered, nor is a server that forgets what it has answered.",
        "The write mode unsafe writes in place: a late writer can leave a whole checkpoint there that nobody acknowledged; none is mistaken.",
        "Hang detection is not tried here.",
    ]
    if raced and all(races.sound(record.found) for record in raced):
        notes.insert(
            0, f"0 of {len(raced)} start races had two winners or none: below {upper_bound(len(raced)):.2%} of such races at 95% (one-sided, exact)."
        )
    if met and all(fencing.sound(record.found, record.facts) for record in met):
        notes.insert(
            1, f"All {len(met)} interleavings tried of one save with another writer ended as promised: exhaustive over the calls, no interval."
        )
    return tuple(notes)
