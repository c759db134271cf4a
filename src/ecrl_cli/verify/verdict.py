"""What the judge says: valid, invalid or unknown, promise by promise, with the evidence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ecrl_cli.config.codec import encode
from ecrl_cli.records.events import SCHEMA_VERSION

VALID, UNKNOWN, INVALID = "valid", "unknown", "invalid"
_WORST_LAST = (VALID, UNKNOWN, INVALID)
SHOWN = 12  # lines of evidence per finding; the rest is counted


@dataclass(frozen=True)
class Finding:
    """One promise: `status`, a sentence, and what it rests on."""

    promise: str
    status: str
    message: str
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """`reference`: the name of the run folder that this one was compared with, or empty."""

    run: str
    run_id: str
    reference: str
    findings: tuple[Finding, ...]

    @property
    def status(self) -> str:
        """The worst of the findings; unknown where nothing was judged."""
        return worst(finding.status for finding in self.findings) if self.findings else UNKNOWN

    def to_json(self) -> dict[str, Any]:
        """verdict.json."""
        return {"schema_version": SCHEMA_VERSION, "status": self.status, **encode(self)}


@dataclass
class Notes:
    """Collects what one check finds against its promise; no note means that it was kept."""

    promise: str
    _notes: list[tuple[str, str]] = field(default_factory=list)

    def broken(self, text: str) -> None:
        """The records show that the promise was broken."""
        self._notes.append((INVALID, text))

    def missing(self, text: str) -> None:
        """What would show it is not there."""
        self._notes.append((UNKNOWN, text))

    @property
    def clean(self) -> bool:
        return not self._notes

    def finding(self, kept: str, evidence: Iterable[str] = ()) -> Finding:
        """The finding: the worst note first and in the message; `kept` is the message where there is none.

        `evidence` stands behind the notes.
        """
        if not self._notes:
            return Finding(self.promise, VALID, kept, tuple(evidence))
        notes = sorted(self._notes, key=lambda note: -_WORST_LAST.index(note[0]))
        status, first = notes[0]
        opening = "Broke promise" if status == INVALID else "Cannot tell"
        lines = [text for _, text in notes]
        more = (f"and {len(lines) - SHOWN} more",) if len(lines) > SHOWN else ()
        return Finding(self.promise, status, f"{opening}: {self.promise} - {first}", (*lines[1:SHOWN], *more, *evidence))


def worst(statuses: Iterable[str]) -> str:
    """invalid before unknown before valid."""
    return max(statuses, key=_WORST_LAST.index)


def render(verdict: Verdict) -> str:
    """For people: the status, then a line per promise with the evidence under those that were not kept."""
    against = f" (against {verdict.reference})" if verdict.reference else ""
    lines = [f"{verdict.run}: {verdict.status}{against}"]
    for finding in verdict.findings:
        lines.append(f"  {finding.status:<8}{finding.message if finding.status != VALID else f'{finding.promise}: {finding.message}'}")
        lines += [f"          {text}" for text in finding.evidence]
    return "\n".join(lines)
