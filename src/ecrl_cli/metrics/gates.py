"""The quality gates of a sweep: conditions without which its numbers are not worth reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_RESIDUAL = 0.02  # of the wall time


@dataclass(frozen=True)
class Gate:
    name: str
    passed: bool
    message: str


def quality_gates(
    documents: Mapping[str, dict[str, Any] | None], verdicts: Mapping[str, str]
) -> tuple[Gate, ...]:
    """The four gates, given metrics.json (None: missing) and the verdict's status of each run, by
    name.
    """
    present = {name: document for name, document in documents.items() if document is not None}
    missing = [f"{name} has no metrics" for name in documents if name not in present]
    unverified = [
        f"{n} is {verdicts.get(n, 'not verified')}" for n in documents if verdicts.get(n) != "valid"
    ]
    short, unbalanced, unaccounted = (
        [f"{name} {fact}" for name, document in present.items() if (fact := check(document))]
        for check in (_short, _unbalanced, _unaccounted)
    )
    return (
        gate("target", missing + short, "every arm is at its target"),
        gate("verified", unverified, "every arm is valid"),
        gate("checkpoints", missing + unbalanced, "every submitted checkpoint is accounted for"),
        gate(
            "time",
            missing + unaccounted,
            f"at most {MAX_RESIDUAL:.0%} of any wall time is residual",
        ),
    )


def gate(name: str, failures: Sequence[str], kept: str) -> Gate:
    return Gate(name, not failures, "; ".join(failures) if failures else kept)


def _short(document: dict[str, Any]) -> str:
    """How the run is not at its target; empty if it is."""
    final, committed, target = (
        document["final"],
        document["committed_steps"],
        document["target_steps"],
    )
    if final is not None and final["global_step"] == target == committed:
        return ""
    return f"committed {committed} of {target} steps" + ("" if final else ", no final record")


def _unbalanced(document: dict[str, Any]) -> str:
    """How many checkpoints were submitted and ended, if these differ."""
    counts = document["checkpoints"]
    ended = counts["committed"] + counts["failed"] + counts["lost"]
    return "" if counts["submitted"] == ended else f"submitted {counts['submitted']}, ended {ended}"


def _unaccounted(document: dict[str, Any]) -> str:
    """The residual, if it is too large."""
    residual, wall = document["seconds"]["residual"], document["wall_s"]
    return (
        ""
        if abs(residual) <= MAX_RESIDUAL * wall
        else f"has {residual:.3f} s of {wall:.3f} s on no account"
    )
