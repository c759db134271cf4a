"""The verdict on an audited job: its promises, arm by arm, and a one-sentence diagnosis."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ecrl_cli.audit import components, promises, samples
from ecrl_cli.audit.components import BROKEN, KEPT, NOT_CHECKED, UNKNOWN, Finding, Judged, judged_arm
from ecrl_cli.audit.records import MAX_STEP, Arm, read_arm
from ecrl_cli.config.codec import encode
from ecrl_cli.errors import EvidenceMissing, plural

EXIT_CODES = {"valid": 0, "invalid": 1, "unknown": 3}
# Promises that a valid verdict requires.
REQUIRED = ("exactly once", "same trajectory", "same end")
# Promises ordered by cause: the earliest broken one is the diagnosis.
_CAUSES = ("exactly once", "same input", "restored", "right checkpoint", "same trajectory", "same end", "state used", "progress", "deterministic")


@dataclass(frozen=True)
class AuditVerdict:
    """`status`: valid, invalid or unknown. `diagnosis`: one sentence. `troubles`: what the recorder could not observe."""

    status: str
    diagnosis: str
    findings: tuple[Finding, ...]
    troubles: tuple[str, ...]
    arms: tuple[Judged, ...]
    references: tuple[Judged, ...]

    def to_json(self) -> dict[str, Any]:
        """The verdict's part of audit.json."""
        counts = {status: sum(f.status == status for f in self.findings) for status in (KEPT, BROKEN, UNKNOWN, NOT_CHECKED)}
        return {
            "status": self.status,
            "diagnosis": self.diagnosis,
            "counts": counts,
            "findings": [encode(finding) for finding in self.findings],
            "troubles": list(self.troubles),
        }


def arms_of(folder: Path) -> tuple[list[Arm], list[Arm]]:
    """(references, arms with faults) under `folder`: subfolders with attempts; references are named ref*. A folder of attempts is one arm with
    faults."""
    if any(child.name.startswith("attempt-") for child in folder.iterdir()):
        return [], [read_arm(folder)]
    found = [child for child in sorted(folder.iterdir()) if child.is_dir() and not child.is_symlink() and any(child.glob("attempt-*"))]
    if not found:
        raise EvidenceMissing(str(folder), "holds no recorded arm", "name the folder of an audit, or of a recording (attempt-00/*.jsonl)")
    arms = [read_arm(child) for child in found]
    return [arm for arm in arms if arm.name.startswith("ref")], [arm for arm in arms if not arm.name.startswith("ref")]


def judge(references: Iterable[Arm], faulted: Iterable[Arm], order: str = "auto") -> AuditVerdict:
    """Judge every arm with faults against the first reference."""
    references, faulted = list(references), list(faulted)
    kinds = sorted({str(p.start["digest"]) for arm in (*references, *faulted) for p in arm.processes if p.start and p.start.get("digest")})
    if len(kinds) > 1:
        said = f"recorded with different digests ({', '.join(kinds)}): nothing can be compared; give every process the same of xxhash and blake3"
        found = Finding("deterministic", UNKNOWN, said)
        return AuditVerdict("unknown", said, (found,), (), tuple(judged_arm(arm) for arm in faulted), tuple(judged_arm(arm) for arm in references))
    undisturbed = [judged_arm(arm) for arm in references]
    for other in undisturbed[1:]:
        other.ignored = components.unseeded(undisturbed)
        other.differs = components.compare(other.path, undisturbed[0].path, other.ignored)
    findings = [promises.deterministic(undisturbed)] if undisturbed else []
    for judged in undisturbed:
        findings += [f for f in [_completed(judged)] if f is not None]
    stable = not findings or findings[0].status != UNKNOWN
    reference = undisturbed[0] if undisturbed else None
    every = [judged_arm(arm, reference, components.unseeded(undisturbed)) for arm in faulted]
    arms = [judged for judged in every if judged.arm.name != promises.COLD]
    started_cold = next((judged for judged in every if judged.arm.name == promises.COLD), None)
    for judged in arms:
        if started_cold is not None:
            findings.append(promises.state_used(judged, started_cold, reference))
        findings += [
            samples.exactly_once(judged, reference, order) if stable else _unstable("exactly once", judged),
            samples.same_input(judged, reference if stable else None),
            *(promises.restored(judged, reference if stable else None)),
            *(samples.same_overflows(judged, reference if stable else None)),
            promises.right_checkpoint(judged),
            promises.same_trajectory(judged, reference, stable),
            promises.same_end(judged, reference, stable),
            promises.progress(judged),
        ]
    troubles = _troubles([*undisturbed, *arms])
    return _verdict(findings, troubles, arms, undisturbed)


def _unstable(promise: str, judged: Judged) -> Finding:
    return Finding(promise, UNKNOWN, "the job is not deterministic: its samples cannot be compared", judged.arm.name)


def _completed(judged: Judged) -> Finding | None:
    last = judged.arm.launches[-1] if judged.arm.launches else None
    if last is None or last.exit_code == 0:
        return None
    return Finding("deterministic", UNKNOWN, f"undisturbed, the job ended with {promises.ending(last.exit_code, last.signal)}", judged.arm.name)


def _troubles(arms: Iterable[Judged]) -> tuple[str, ...]:
    found = {f"{judged.arm.name}: {trouble}": None for judged in arms for process in judged.arm.processes for trouble in process.troubles}
    return tuple(found)


def _verdict(findings: list[Finding], troubles: tuple[str, ...], arms: list[Judged], references: list[Judged]) -> AuditVerdict:
    broken = [finding for finding in findings if finding.status == BROKEN]
    open_ones = [finding for finding in findings if finding.status == UNKNOWN]
    resized = {judged.arm.name for judged in arms if judged.path.resized}  # its trajectory is another one by nature
    missing = [f for f in findings if f.status == NOT_CHECKED and f.promise in REQUIRED and not (f.promise != "exactly once" and f.arm in resized)]
    if broken:
        first = min(
            broken, key=lambda finding: (MAX_STEP if finding.step is None else finding.step, _CAUSES.index(finding.promise.partition(":")[0]))
        )
        status, diagnosis = "invalid", first.message
    elif troubles:
        status, diagnosis = "unknown", f"the recorder could not see everything: {troubles[0]}"
    elif open_ones:
        status, diagnosis = "unknown", open_ones[0].message
    elif missing or not arms:
        status = "unknown"
        diagnosis = f"{missing[0].promise} was not checked: {missing[0].message}" if missing else "no run with failures is on record"
    else:
        exact = len(arms) - len(resized)
        parts = [f"{plural(exact, 'run')} with failures ended bit for bit as the undisturbed one"] if exact else []
        parts += [f"{len(resized)} with another number of processes, with the same samples and state"] if resized else []
        status, diagnosis = "valid", " and ".join(parts)
    return AuditVerdict(status, diagnosis, tuple(findings), troubles, tuple(arms), tuple(references))


def render(verdict: AuditVerdict, name: str) -> str:
    """Text for the terminal: the diagnosis, then promises that were not kept with their evidence, then the rest, one line each."""
    lines = [f"{name}: {verdict.status}: {verdict.diagnosis}"]
    rank = {BROKEN: 0, UNKNOWN: 1, NOT_CHECKED: 2, KEPT: 3}
    unseen = [f"  not seen    {trouble}" for trouble in verdict.troubles[:8]]
    lines += unseen if verdict.status == "unknown" else []  # then they decided
    for finding in sorted(verdict.findings, key=lambda finding: (finding.message != verdict.diagnosis, rank[finding.status])):
        where = f" [{finding.arm}]" if finding.arm else ""
        lines.append(f"  {finding.status:<12}{finding.promise}{where}: {finding.message}")
        if finding.status != KEPT:
            lines += [f"              {text}" for text in finding.evidence]
    return "\n".join([*lines, *([] if verdict.status == "unknown" else unseen)])
