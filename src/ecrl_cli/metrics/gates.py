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


def quality_gates(documents: Mapping[str, dict[str, Any] | None], verdicts: Mapping[str, str]) -> tuple[Gate, ...]:
    """The four gates, given metrics.json (None: missing) and the verdict's status of each run, by name."""
    present = {name: document for name, document in documents.items() if document is not None}
    missing = [f"{name} has no metrics" for name in documents if name not in present]
    short = [_short(n, d) for n, d in present.items() if not _at_target(d)]
    unverified = [f"{n} is {verdicts.get(n, 'not verified')}" for n in documents if verdicts.get(n) != "valid"]
    unbalanced = [_unbalanced(n, d) for n, d in present.items() if not _balanced(d)]
    unaccounted = [_residual(n, d) for n, d in present.items() if not _accounted(d)]
    return (
        gate("target", missing + short, "every arm is at its target"),
        gate("verified", unverified, "every arm is valid"),
        gate("checkpoints", missing + unbalanced, "every submitted checkpoint is accounted for"),
        gate("time", missing + unaccounted, f"at most {MAX_RESIDUAL:.0%} of any wall time is residual"),
    )


def gate(name: str, failures: Sequence[str], kept: str) -> Gate:
    return Gate(name, not failures, "; ".join(failures) if failures else kept)


def _at_target(document: dict[str, Any]) -> bool:
    final = document["final"]
    return final is not None and final["global_step"] == document["target_steps"] == document["committed_steps"]


def _short(name: str, document: dict[str, Any]) -> str:
    return f"{name} committed {document['committed_steps']} of {document['target_steps']} steps" + ("" if document["final"] else ", no final record")


def _balanced(document: dict[str, Any]) -> bool:
    counts = document["checkpoints"]
    return bool(counts["submitted"] == counts["committed"] + counts["failed"] + counts["lost"])


def _unbalanced(name: str, document: dict[str, Any]) -> str:
    counts = document["checkpoints"]
    return f"{name} submitted {counts['submitted']}, ended {counts['committed'] + counts['failed'] + counts['lost']}"


def _accounted(document: dict[str, Any]) -> bool:
    return bool(abs(document["seconds"]["residual"]) <= MAX_RESIDUAL * document["wall_s"])


def _residual(name: str, document: dict[str, Any]) -> str:
    return f"{name} has {document['seconds']['residual']:.3f} s of {document['wall_s']:.3f} s on no account"
