"""Verdicts of the integrity check as data: accepted, rejected by a layer, or (a defect) an exception."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ecrl_cli.checkpoint.store.integrity import IntegrityReport


@dataclass(frozen=True)
class Look:
    """`layer`: the rejecting layer (empty: none). `untyped`: an exception from the integrity check, which promises to raise none."""

    layer: str = ""
    reason: str = ""
    untyped: str = ""

    @property
    def accepted(self) -> bool:
        return not self.layer and not self.untyped


def looked(examine: Callable[[], IntegrityReport]) -> Look:
    """The verdict of `examine`."""
    try:
        report = examine()
    except Exception as error:  # any exception is a finding
        return Look(untyped=f"{type(error).__name__}: {error}"[:200])
    return Look() if report.ok else Look(report.layer or "?", report.reason)


def outcome(look: Look, changed: bool) -> str:
    """The outcome class of one check of a checkpoint whose bytes were `changed` (if not, it must pass)."""
    if look.untyped:
        return "untyped"
    if look.accepted:
        return "silent_wrong" if changed else "new"
    return "detected"
