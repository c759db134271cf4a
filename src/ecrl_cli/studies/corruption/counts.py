"""Counts over a slice of injections, with the first example of each kind of error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from ecrl_cli.studies.corruption.invariants import Look

COUNTS = ("injections", "noops", "detected", "silent_wrong", "untyped", "noops_refused")


class Counts:
    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._layers: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    def add(self, outcome: str, look: Look, changed: bool, where: str) -> None:
        """Add one injection at `where` with `outcome`. A rejection of an unchanged checkpoint is an error, too."""
        self._counts["injections"] += 1
        self._counts["noops"] += not changed
        if changed or outcome == "untyped":
            self._count(outcome, look, where)
        elif outcome == "detected":
            self._count("noops_refused", look, where)

    def _count(self, what: str, look: Look, where: str) -> None:
        self._counts[what] += 1
        if what == "detected":
            self._layers[look.layer] += 1
        else:
            self._first.setdefault(what, f"{where}: {look.layer or look.untyped or 'accepted'}")

    def found(self) -> dict[str, Any]:
        """For the record: counts, counts by detecting layer, and one example of each kind of error."""
        return {name: self._counts[name] for name in COUNTS} | {
            "layers": dict(sorted(self._layers.items())),
            "first": dict(sorted(self._first.items())),
        }


def summed(found: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The sum of several slices; `first` comes from the first slice that has it."""
    counts: Counter[str] = Counter()
    layers: Counter[str] = Counter()
    first: dict[str, str] = {}
    for each in found:
        counts.update({name: each[name] for name in COUNTS})
        layers.update(each["layers"])
        first = each["first"] | first
    return {name: counts[name] for name in COUNTS} | {"layers": dict(layers), "first": first}
