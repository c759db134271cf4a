"""How a run was judged: the verdict on file, if it is the one on what lies there now; or judged anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ecrl_cli.history.load import load
from ecrl_cli.metrics.divergence import divergence_document
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.verdict_file import divergence_of, read_verdict
from ecrl_cli.verify.verdict import INVALID, NOT_CHECKED, UNKNOWN, VALID, worst
from ecrl_cli.verify.verify_run import named, verify_run


@dataclass(frozen=True)
class Finding:
    promise: str
    status: str
    message: str
    evidence: Any = None


@dataclass(frozen=True)
class Verdict:
    """A verdict; `missing` where the run was not verified, or not as it is now: `why`. `reference`: the run that it was compared with, or empty."""

    status: str
    findings: tuple[Finding, ...] = ()
    reference: str = ""
    why: str = ""


Judged = tuple[Verdict, dict[str, Any] | None]  # with the distances to its reference, where there is one
UNJUDGED: Judged = (Verdict(UNKNOWN), None)


def judged_before(layout: RunLayout) -> Judged:
    """What is on file. A stale verdict is shown as none, with the reason. RecordError, OSError, KeyError, TypeError for a file that is no verdict."""
    if not layout.verdict.exists():
        return Verdict("missing"), None
    value, stale = read_verdict(layout)
    if stale:
        return Verdict("missing", (Finding("records", UNKNOWN, f"not judged ({stale}); run `ecrl verify` again"),), why=stale), None
    findings = tuple(Finding(f["promise"], f["status"], f["message"], f.get("evidence")) for f in value["findings"])
    return Verdict(status_of(findings), findings, str(value.get("reference", ""))), divergence_of(layout, value)


def judged_now(layout: RunLayout) -> Judged:
    """Whatever is on file. What `judge` raises."""
    said = verify_run(layout.root)
    findings = tuple(Finding(f.promise, f.status, f.message, list(f.evidence)) for f in said.findings)
    beside = load(RunLayout(named(layout.root).parent / said.reference)) if said.reference else None
    return Verdict(status_of(findings), findings, said.reference), divergence_document(load(layout), beside) if beside else None


def status_of(findings: Sequence[Finding]) -> str:
    """The worst of the findings, as the judge has it, whatever stands beside them; unknown for a word that it does not know."""
    known = all(finding.status in (VALID, INVALID, UNKNOWN, NOT_CHECKED) for finding in findings)
    found = worst(finding.status for finding in findings) if findings and known else UNKNOWN
    return UNKNOWN if found == NOT_CHECKED else found
