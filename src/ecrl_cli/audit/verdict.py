"""The verdict on an audited job: its promises, arm by arm, and a one-sentence diagnosis."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ecrl_cli.audit import components, inside_save, progress, promises, samples
from ecrl_cli.audit.components import (
    BROKEN,
    KEPT,
    NOT_CHECKED,
    SCALER,
    UNKNOWN,
    WORST_FIRST,
    ArmFinding,
    Judged,
    judged_arm,
)
from ecrl_cli.audit.control import CONTROL, control_seen
from ecrl_cli.audit.determinism import Determinism, determinism
from ecrl_cli.audit.files import read_inventory
from ecrl_cli.audit.lineage import resume_kinds
from ecrl_cli.audit.records import Arm, read_arm, watched_from_outside
from ecrl_cli.audit.restored import restored
from ecrl_cli.audit.same_files import Undisturbed, same_files
from ecrl_cli.audit.steps import MAX_STEP
from ecrl_cli.config.codec import encode
from ecrl_cli.errors import EvidenceMissing, plural
from ecrl_cli.verify.verdict import INVALID, VALID

# Promises that a valid verdict requires.
REQUIRED = ("exactly once", "same trajectory", "same end")
# Promises ordered by cause: the earliest broken one is the diagnosis.
CAUSES = (
    "exactly once",
    "same input",
    "restored",
    inside_save.RECOVERABLE,
    "right checkpoint",
    "same trajectory",
    "same end",
    "same files",
    "state used",
    "progress",
    "complete record",
    "deterministic",
)
# What a run that is bit for bit the undisturbed one cannot have broken, wherever its state came
# from.
_LINEAGE = ("restored",)
_ATTEMPT = re.compile(r"attempt (\d+)")


@dataclass(frozen=True)
class AuditVerdict:
    """`status`: valid, invalid or unknown. `diagnosis`: one sentence. `troubles`: what the recorder
    could not observe.
    """

    status: str
    diagnosis: str
    findings: tuple[ArmFinding, ...]
    troubles: tuple[str, ...]
    arms: tuple[Judged, ...]
    references: tuple[Judged, ...]

    @property
    def where(self) -> str:
        """The arms that show what the diagnosis is about, in brackets, where there are several:
        first the one that it describes.
        """
        decided = [finding for finding in self.findings if finding.message == self.diagnosis]
        if not decided or not decided[0].arm or len(self.arms) < 2:
            return ""
        first = decided[0]
        alike = [
            finding.arm
            for finding in self.findings
            if (finding.promise, finding.status) == (first.promise, first.status)
        ]
        return f" [{', '.join(dict.fromkeys([first.arm, *alike]))}]"

    def in_order(self) -> list[ArmFinding]:
        """The findings: the one that decided, then those that broke by step and by cause, then the
        rest.
        """

        def place(finding: ArmFinding) -> tuple[bool, int, int, int]:
            by_cause = _by_cause(finding) if finding.status == BROKEN else (0, 0)
            decided = finding.message == self.diagnosis
            return (not decided, WORST_FIRST.index(finding.status), *by_cause)

        return sorted(self.findings, key=place)

    def to_json(self) -> dict[str, Any]:
        """The verdict's part of audit.json."""
        counts = {
            status: sum(f.status == status for f in self.findings)
            for status in (KEPT, BROKEN, UNKNOWN, NOT_CHECKED)
        }
        return {
            "status": self.status,
            "diagnosis": self.diagnosis,
            "counts": counts,
            "findings": [encode(finding) for finding in self.findings],
            "troubles": list(self.troubles),
        }


def arms_of(folder: Path) -> tuple[list[Arm], list[Arm]]:
    """(references, arms with faults) under `folder`: subfolders with attempts; references are named
    ref*. A folder of attempts is one arm with faults.
    """
    if any(child.name.startswith("attempt-") for child in folder.iterdir()):
        return [], [read_arm(folder)]
    found = [
        child
        for child in sorted(folder.iterdir())
        if child.is_dir() and not child.is_symlink() and any(child.glob("attempt-*"))
    ]
    if not found:
        raise EvidenceMissing(
            str(folder),
            "holds no recorded arm",
            "name the folder of an audit, or of a recording (attempt-00/*.jsonl)",
        )
    arms = [arm for child in found if (arm := _begun(child)) is not None]
    return [arm for arm in arms if arm.name.startswith("ref")], [
        arm for arm in arms if not arm.name.startswith("ref")
    ]


def _begun(folder: Path) -> Arm | None:
    """The arm; None where the audit was stopped in it before its first step."""
    try:
        return read_arm(folder)
    except EvidenceMissing:
        launches, _ = watched_from_outside(folder / "arm.json")
        stopped = any(launch.stopped for launch in launches)
        if stopped and not folder.name.startswith("ref"):
            return None
        raise


def judge(
    references: Iterable[Arm],
    faulted: Iterable[Arm],
    order: str = "auto",
    planned: Iterable[str] = (),
    anew: bool = False,
) -> AuditVerdict:
    """Judge every arm with faults against the first reference. `planned`: the names of all arms
    that were to be run; `order`, `anew`: as in `audit.order` and `audit.anew`.
    """
    references, faulted = list(references), list(faulted)
    if components.by_model_input(references):
        references = [components.without_batches(arm) for arm in references]
        faulted = [components.without_batches(arm) for arm in faulted]
    kinds = sorted(
        {
            str(p.start["digest"])
            for arm in (*references, *faulted)
            for p in arm.processes
            if p.start and p.start.get("digest")
        }
    )
    unlike: ArmFinding | None = None
    if len(kinds) > 1:
        said = (
            f"recorded with different digests ({', '.join(kinds)}): nothing can be compared; give"
            " every process the same of xxhash and blake3"
        )
        unlike = ArmFinding("deterministic", UNKNOWN, said)
    if unlike := unlike or promises.in_several_processes(references):
        arms, others = ([judged_arm(arm) for arm in some] for some in (faulted, references))
        return AuditVerdict(UNKNOWN, unlike.message, (unlike,), (), tuple(arms), tuple(others))
    undisturbed = [judged_arm(arm) for arm in references]
    for other in undisturbed[1:]:
        other.ignored = components.unseeded(undisturbed)
        other.differs = components.compare(other.path, undisturbed[0].path, other.ignored)
    started_cold = next((arm for arm in faulted if arm.name == promises.COLD), None)
    spoilt = next((arm for arm in faulted if arm.name == CONTROL and not arm.stopped), None)
    struck = [arm for arm in faulted if arm not in (started_cold, spoilt) and not arm.stopped]
    # the order of their steps is not known: nothing else of them is judged
    tangled = [again for arm in struck if (again := promises.started_again(arm, references[:1]))]
    struck = [arm for arm in struck if arm.name not in {finding.arm for finding in tangled}]
    steady = determinism(undisturbed, struck)
    findings = [*([steady.finding] if steady.finding is not None else []), *tangled]
    for judged in undisturbed:
        findings += [
            f
            for f in [_completed(judged), promises.complete_record(judged)]
            if f is not None and f.status != KEPT
        ]
    ended = {arm.name for arm in faulted if not arm.stopped}
    findings += [
        progress.not_run(name)
        for name in dict.fromkeys([*planned, *(arm.name for arm in faulted)])
        if name not in ended
    ]
    reference = undisturbed[0] if undisturbed else None
    ignored = components.unseeded(undisturbed)
    inventories = [read_inventory(judged.arm.folder) for judged in undisturbed]
    told = Undisturbed.of(reference)
    needed = resume_kinds(struck)
    arms = [judged_arm(arm, reference, ignored, needed) for arm in struck]
    cold = judged_arm(started_cold, reference, ignored) if started_cold is not None else None
    for judged in arms:
        if cold is not None:
            findings.append(promises.state_used(judged, cold, reference))
        made = [
            *of_arm(judged, reference, steady, order),
            promises.right_checkpoint(judged, anew),
        ]
        if steady.exact and promises.only_interleaved(judged, reference):
            made = [_interleaved(finding) for finding in made]
        findings += [*made, same_files(inventories, judged, steady.exact, told)]
    if spoilt is not None:
        made = of_arm(judged_arm(spoilt, reference, ignored), reference, steady, order)
        findings.append(control_seen(spoilt, made))
    if steady.exact:
        findings = promises.with_savers(findings, arms, reference)
    troubles = _troubles([*undisturbed, *arms])
    return _verdict(findings, troubles, arms, undisturbed)


def of_arm(
    judged: Judged, reference: Judged | None, steady: Determinism, order: str
) -> list[ArmFinding]:
    """All promises of one arm."""
    findings = [
        (
            samples.exactly_once(judged, reference, order)
            if steady.stable("samples")
            else _unstable("exactly once", judged)
        ),
        (
            samples.same_input(judged, reference)
            if steady.stable("input")
            else _unstable("same input", judged)
        ),
        *restored(judged, reference, steady.stable),
        *(samples.same_overflows(judged, reference if steady.exact else None)),
        promises.same_trajectory(judged, reference, steady),
        promises.same_end(judged, reference, steady),
        *inside_save.recoverable(judged, reference if steady.exact else None),
        progress.progress(judged),
        promises.complete_record(judged, reference),
    ]
    if promises.follows_exactly(judged, reference, steady):
        findings = [_overruled(finding) for finding in findings]
    overflowed = [f.step for f in findings if (f.promise, f.status) == (SCALER, BROKEN) and f.step]
    if overflowed:
        findings = [_after_other_overflows(finding, min(overflowed)) for finding in findings]
    return findings


def _after_other_overflows(finding: ArmFinding, step: int) -> ArmFinding:
    """`finding`, of an arm whose gradient scaler was another from `step` on: what comes after it
    follows from that.
    """
    if (finding.promise, finding.status) != ("same trajectory", BROKEN) or (
        finding.step or 0
    ) < step:
        return finding
    where = finding.message.partition(": ")[0]
    message = f"{where}: it follows from the gradient scaler (see {SCALER})"
    return replace(finding, message=message)


def _interleaved(finding: ArmFinding) -> ArmFinding:
    """`finding`, of an arm that differs in nothing but whose turn it is."""
    if finding.status != BROKEN:
        return finding
    said = (
        "after a restart the optimizers take turns in another order; each one's updates are, bit"
        " for bit, those of the undisturbed run"
    )
    status = KEPT if finding.promise == "same trajectory" else NOT_CHECKED
    return replace(finding, status=status, message=said, step=None, evidence=())


def _overruled(finding: ArmFinding) -> ArmFinding:
    """`finding`, of a run that is bit for bit the undisturbed one from its restart to its end."""
    if finding.status != BROKEN or finding.promise.partition(":")[0] not in _LINEAGE:
        return finding
    said = (
        "where it came from is not on record, and every step from there to the end is bit for bit"
        " that of the undisturbed run"
    )
    return replace(finding, status=NOT_CHECKED, message=said, step=None, evidence=())


def _unstable(promise: str, judged: Judged) -> ArmFinding:
    return ArmFinding(
        promise,
        UNKNOWN,
        "the job is not deterministic: what it consumed cannot be compared",
        judged.arm.name,
    )


def _completed(judged: Judged) -> ArmFinding | None:
    last = judged.arm.launches[-1] if judged.arm.launches else None
    if last is None or last.exit_code == 0:
        return None
    return ArmFinding(
        "deterministic",
        UNKNOWN,
        f"undisturbed, the job ended with {progress.ending(last.exit_code, last.signal)}",
        judged.arm.name,
    )


def _troubles(arms: Iterable[Judged]) -> tuple[str, ...]:
    found = {
        f"{judged.arm.name}: {trouble}": None
        for judged in arms
        for process in judged.arm.processes
        for trouble in process.troubles
    }
    return tuple(found)


def _verdict(
    findings: list[ArmFinding],
    troubles: tuple[str, ...],
    arms: list[Judged],
    references: list[Judged],
) -> AuditVerdict:
    broken = [finding for finding in findings if finding.status == BROKEN]
    open_ones = [finding for finding in findings if finding.status == UNKNOWN]
    # its trajectory is another one by nature
    resized = {judged.arm.name for judged in arms if judged.path.resized}
    missing = [
        f
        for f in findings
        if f.status == NOT_CHECKED
        and f.promise in REQUIRED
        and not (f.promise != "exactly once" and f.arm in resized)
    ]
    if broken:
        first = min(broken, key=_by_cause)
        # where no attempt comes back, that a save was struck is not why
        if first.promise == inside_save.RECOVERABLE:
            first = next(
                (
                    finding
                    for finding in broken
                    if finding.promise == progress.PROMISE and finding.arm != first.arm
                ),
                first,
            )
        status, diagnosis = INVALID, first.message
    elif troubles:
        status, diagnosis = UNKNOWN, f"the recorder could not see everything: {troubles[0]}"
    elif open_ones:
        status, diagnosis = UNKNOWN, open_ones[0].message
    elif missing or not arms:
        status = UNKNOWN
        diagnosis = (
            f"{missing[0].promise} was not checked: {missing[0].message}"
            if missing
            else "no run with failures is on record"
        )
    else:
        exact = len(arms) - len(resized)
        parts = (
            [f"{plural(exact, 'run')} with failures ended bit for bit as the undisturbed one"]
            if exact
            else []
        )
        parts += (
            [f"{len(resized)} with another number of processes, with the same samples and state"]
            if resized
            else []
        )
        missed = sum(len(progress.not_reached(judged.arm)) for judged in arms)
        further = f" ({progress.say_missed(missed)})" if missed else ""
        status, diagnosis = VALID, " and ".join(parts) + further
    return AuditVerdict(
        status, diagnosis, tuple(findings), troubles, tuple(arms), tuple(references)
    )


def _by_cause(finding: ArmFinding) -> tuple[int, int]:
    """Orders what broke: by step, then by what explains what."""
    step = MAX_STEP if finding.step is None else finding.step
    return step, CAUSES.index(finding.promise.partition(":")[0])


def _folded(findings: list[ArmFinding]) -> Iterator[ArmFinding]:
    """The findings, of those that only the attempt tells apart the first, which names the others'
    attempts.
    """
    alike: dict[object, list[ArmFinding]] = {}
    for finding in findings:
        said = _ATTEMPT.sub("attempt #", finding.message)
        kind = (finding.promise, finding.status, finding.arm, finding.evidence, said)
        alike.setdefault(kind, []).append(finding)
    for first, *others in alike.values():
        named = [_ATTEMPT.search(finding.message) for finding in others]
        numbers = [match[1] for match in named if match is not None]
        also = f" ({'attempts' if len(numbers) > 1 else 'attempt'} {', '.join(numbers)} alike)"
        yield replace(first, message=f"{first.message}{also if numbers else ''}")


def render(verdict: AuditVerdict, name: str) -> str:
    """Text for the terminal: the diagnosis, then promises that were not kept with their evidence,
    then the rest, one line each; what several attempts of an arm share is said once.
    """
    lines = [f"{name}: {verdict.status}: {verdict.diagnosis}{verdict.where}"]
    unseen = [f"  not seen    {trouble}" for trouble in verdict.troubles[:8]]
    lines += unseen if verdict.status == UNKNOWN else []  # then they decided
    for finding in _folded(verdict.in_order()):
        where = f" [{finding.arm}]" if finding.arm else ""
        lines.append(f"  {finding.status:<12}{finding.promise}{where}: {finding.message}")
        if finding.status != KEPT:
            lines += [f"              {text}" for text in finding.evidence]
    return "\n".join([*lines, *([] if verdict.status == UNKNOWN else unseen)])
