"""The study's records sorted by kind, and counted."""

from __future__ import annotations

from collections.abc import Sequence

from ecrl_cli.studies.frame.study import Record

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
