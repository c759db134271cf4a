"""What a bench reached of what it was to reach, in one form for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


def at_most(reached: float, limit: float) -> dict[str, Any]:
    return {"at_most": limit, "reached": round(reached, 4), "met": reached <= limit}


def at_least(reached: float, limit: float) -> dict[str, Any]:
    return {"at_least": limit, "reached": round(reached, 4), "met": reached >= limit}


def note(conclusive: bool, apart: float = 0.03) -> str:
    """What a bench says of itself where its two identical arms differ by more than `apart`."""
    return (
        ""
        if conclusive
        else (
            f"inconclusive: two identical arms differ by more than {apart:.0%}; something else runs"
            " on this machine"
        )
    )


@dataclass(frozen=True)
class Figure:
    """One line of the table. `control`: the A/A ratio farthest from 1 (None: the bench has none);
    `conclusive`: whether it is near enough.
    """

    bench: str
    name: str
    reached: float
    limit: str
    met: bool
    control: float | None
    conclusive: bool

    @property
    def verdict(self) -> str:
        if not self.conclusive:
            return "inconclusive"
        return "met" if self.met else "missed"


def figures(bench: str, document: Mapping[str, Any], where: str = "") -> Iterator[Figure]:
    """Every goal in a bench's JSON document, also in the documents inside it (one for each model,
    case or number of processes).
    """
    controls = [
        float(value)
        for name, value in document.get("controls", {}).items()
        if name.startswith("A/A")
    ]
    control = max(controls, key=lambda value: abs(value - 1), default=None)
    for name, goal in document.get("goals", {}).items():
        limit = f"<= {goal['at_most']:g}" if "at_most" in goal else f">= {goal['at_least']:g}"
        title = f"{where}: {name}" if where else name
        yield Figure(
            bench,
            title,
            goal["reached"],
            limit,
            goal["met"],
            control,
            document.get("conclusive", True),
        )
    for name, inside in document.items():
        if isinstance(inside, Mapping) and name != "goals":
            yield from figures(bench, inside, name if "goals" in inside else where)
