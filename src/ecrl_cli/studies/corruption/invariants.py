"""What the guard says, as data: accepted, refused by a layer, or (a defect) an exception."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ecrl_cli.checkpoint.store.integrity import IntegrityReport


@dataclass(frozen=True)
class Look:
    """`layer` refused it (empty: none did). `untyped`: the exception that came out of the guard, which promises that none does."""

    layer: str = ""
    reason: str = ""
    untyped: str = ""

    @property
    def accepted(self) -> bool:
        return not self.layer and not self.untyped


def looked(examine: Callable[[], IntegrityReport]) -> Look:
    """The look that `examine` gives."""
    try:
        report = examine()
    except Exception as error:  # whatever it is: that it happened is the finding
        return Look(untyped=f"{type(error).__name__}: {error}"[:200])
    return Look() if report.ok else Look(report.layer or "?", report.reason)


def outcome(look: Look, changed: bool) -> str:
    """The outcome class of one look at a checkpoint whose bytes were `changed` (or not: then it must pass)."""
    if look.untyped:
        return "untyped"
    if look.accepted:
        return "silent_wrong" if changed else "new"
    return "detected"
