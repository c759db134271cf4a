"""The verdict: valid, invalid, unknown or not checked for each promise, with evidence."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ecrl_cli.config.codec import encode
from ecrl_cli.errors import visible
from ecrl_cli.records.events import SCHEMA_VERSION

VALID, UNKNOWN, INVALID = "valid", "unknown", "invalid"
NOT_CHECKED = "not checked"  # nothing of this promise could be compared, or it is not claimed
EXIT_CODES = {VALID: 0, INVALID: 1, UNKNOWN: 3}  # of a run or a job that was judged
_WORST_LAST = (NOT_CHECKED, VALID, UNKNOWN, INVALID)
_DECIDING = (INVALID, UNKNOWN, VALID, NOT_CHECKED)  # a verdict begins with what decided it
_WIDTH = len(NOT_CHECKED) + 1
_LONG = re.compile(r"[0-9]{41,}")  # a stranger's number may have hundreds of digits
SHOWN = 12  # lines of evidence per finding; the rest is only counted


@dataclass(frozen=True)
class Finding:
    """One promise: `status` (valid, invalid, unknown or not checked), a sentence, and its
    evidence.
    """

    promise: str
    status: str
    message: str
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """`reference`: the name of the run folder that this one was compared with, or empty.
    `judged_to_step`: of a run that was still running. `rest`: likewise the name of the run that its
    rest was compared with.
    """

    run: str
    run_id: str
    reference: str
    findings: tuple[Finding, ...]
    judged_to_step: int | None = None
    rest: str = ""

    @property
    def status(self) -> str:
        """The worst of the findings: valid, unknown or invalid. Unknown if no promise was
        checked.
        """
        found = worst(finding.status for finding in self.findings) if self.findings else NOT_CHECKED
        return UNKNOWN if found == NOT_CHECKED else found

    def to_json(self) -> dict[str, Any]:
        """The content of verdict.json."""
        document = {"schema_version": SCHEMA_VERSION, "status": self.status, **encode(self)}
        return {
            key: value
            for key, value in document.items()
            if key not in ("judged_to_step", "rest") or value not in (None, "")
        }


@dataclass
class FindingBuilder:
    """Collects the problems that one check finds with its promise; without any, the promise was
    kept.
    """

    promise: str
    _notes: list[tuple[str, str]] = field(default_factory=list)

    def broken(self, text: str) -> None:
        """Record that the promise was broken."""
        self._notes.append((INVALID, _LONG.sub(_cut, text)))

    def missing(self, text: str) -> None:
        """Record that evidence is missing."""
        self._notes.append((UNKNOWN, _LONG.sub(_cut, text)))

    def add_all(self, other: FindingBuilder) -> None:
        """Append everything that `other` found."""
        self._notes += other._notes

    @property
    def clean(self) -> bool:
        return not self._notes

    def finding(self, kept: str, evidence: Iterable[str] = (), *, checked: bool = True) -> Finding:
        """Build the finding: the worst note becomes the message; without notes it is `kept`.

        `evidence` follows the notes. `checked`: False if nothing was compared; without notes the
        promise is then not checked.
        """
        if not self._notes:
            return Finding(self.promise, VALID if checked else NOT_CHECKED, kept, tuple(evidence))
        notes = sorted(self._notes, key=lambda note: -_WORST_LAST.index(note[0]))
        status, first = notes[0]
        lines = [text for _, text in notes]
        more = (f"and {len(lines) - SHOWN} more",) if len(lines) > SHOWN else ()
        return Finding(
            self.promise,
            status,
            f"{opening(status)}{self.promise} - {first}",
            (*lines[1:SHOWN], *more, *evidence),
        )


def opening(status: str) -> str:
    """How the message of a promise begins that was not kept: its status says that it could not be
    told.
    """
    return "Broke promise: " if status == INVALID else ""


def _cut(number: re.Match[str]) -> str:
    return f"{number[0][:20]}... ({len(number[0])} digits)"


def worst(statuses: Iterable[str]) -> str:
    """The worst status: invalid, then unknown, valid, not checked."""
    return max(statuses, key=_WORST_LAST.index)


def counted(findings: Iterable[Finding]) -> str:
    """How many promises were broken, not proven, kept and not checked, as text; zero counts are
    left out.
    """
    numbers = Counter(finding.status for finding in findings)
    words = (
        (INVALID, "broken"),
        (UNKNOWN, "not proven"),
        (VALID, "kept"),
        (NOT_CHECKED, "not checked"),
    )
    counts = [(numbers[status], word) for status, word in words if numbers[status]]
    first = [
        f"{number} {'promise' if number == 1 else 'promises'} {word}" for number, word in counts[:1]
    ]
    return (
        ", ".join([*first, *(f"{number} {word}" for number, word in counts[1:])])
        or "no promise checked"
    )


def render(verdict: Verdict) -> str:
    """Text for the terminal: the status, then a line per promise with its evidence, those first
    that decided.
    """
    against = f" (against {visible(verdict.reference)})" if verdict.reference else ""
    running = (
        ""
        if verdict.judged_to_step is None
        else f"; still running, judged to step {verdict.judged_to_step}"
    )
    lines = [
        f"{visible(verdict.run)}: {verdict.status} ({counted(verdict.findings)}){against}{running}"
    ]
    for finding in sorted(verdict.findings, key=lambda finding: _DECIDING.index(finding.status)):
        # the message of these names the promise already
        named = finding.status in (INVALID, UNKNOWN)
        sentence = finding.message if named else f"{finding.promise}: {finding.message}"
        lines.append(f"  {finding.status:<{_WIDTH}}{visible(sentence)}")
        lines += [f"  {'':<{_WIDTH}}{visible(text)}" for text in finding.evidence]
    return "\n".join(lines)
