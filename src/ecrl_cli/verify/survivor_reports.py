"""Compares survivor reports with other records, since all survivors may be wrong in the same way."""

from __future__ import annotations

from collections import Counter

from ecrl_cli.checkpoint.format.canonical_json import digest
from ecrl_cli.checkpoint.format.manifest import Manifest
from ecrl_cli.failures.registry import recorded_kind
from ecrl_cli.records.events import Attempt, RankLine
from ecrl_cli.records.survivor_records import SURVIVED, SurvivorReport
from ecrl_cli.verify.rank_spans import ROUNDING_S
from ecrl_cli.verify.verdict import FindingBuilder
from ecrl_cli.verify.verification_input import Case

_PARAMETER = "parameters."


def check_reports(case: Case, a: Attempt, reports: dict[int, SurvivorReport], notes: FindingBuilder) -> None:
    """Check each report against the recorded deaths, the rank's own log and spans, and the checkpoints."""
    for rank, report in sorted(reports.items()):
        who = f"rank {rank} of attempt {a.attempt}"
        _check_living(case, a, who, report, notes)
        _check_log(case, a, rank, report, notes)
    for report in list(reports.values())[:1]:  # all agree on these, or the difference is reported elsewhere
        _check_layers(case, a, report, notes)
        _check_state(case, a, report, notes)


def _check_living(case: Case, a: Attempt, who: str, report: SurvivorReport, notes: FindingBuilder) -> None:
    """Ranks leave because of a death: the report knows at least one of those on record. Of several at once it may not know all."""
    others = {entry.index: entry.others for entry in case.run.plan or ()}
    dead = {a.rank} if a.outcome == SURVIVED and a.rank is not None else set[int]()
    for fired in case.run.fired:
        if fired.attempt == a.attempt and recorded_kind(fired.kind).others_go_on and fired.at < report.at:
            victims = (fired.rank, *others.get(fired.index, ()))
            dead |= {victim for victim in victims if _silent_after(case, a, victim, fired.at)}
    if dead and dead <= set(report.alive):
        notes.broken(f"{who} reports ranks {sorted(dead)} as living, whose deaths are on record")


def _silent_after(case: Case, a: Attempt, rank: int, at: float) -> bool:
    """Whether the rank recorded nothing after `at`."""
    logs = case.run.logs(a.attempt)
    return rank not in logs.survivor_reports and all(line.at <= at for lines in [logs.ranks.get(rank)] if lines for line in lines.events)


def _check_log(case: Case, a: Attempt, rank: int, report: SurvivorReport, notes: FindingBuilder) -> None:
    """The report is the rank's last action in its attempt; its waiting time lies within the step; its state is that of the rank's last line."""
    who, account = f"rank {rank} of attempt {a.attempt}", case.spans.of(a.attempt, rank)
    if account and report.at < account.end - ROUNDING_S:
        notes.broken(f"{who} dates its report {account.end - report.at:.6f} s before the end of its own spans")
    line = _line(case, a, rank, report.global_step)
    if line is None:
        return
    spent = sum(redone.seconds for redone in report.redone)
    if spent > line.seconds + ROUNDING_S:
        notes.broken(f"{who} reports {spent:.6f} s of doing again in step {line.global_step}, which took {line.seconds:.6f} s")
    if line.state_digest and report.state_digest and line.state_digest != report.state_digest:
        notes.broken(f"{who} reports another state behind step {line.global_step} than it logged")


def _line(case: Case, a: Attempt, rank: int, step: int) -> RankLine | None:
    lines = case.run.logs(a.attempt).ranks.get(rank)
    return next((line for line in reversed(lines.events) if line.global_step == step), None) if lines else None


def _check_layers(case: Case, a: Attempt, report: SurvivorReport, notes: FindingBuilder) -> None:
    """Layers are the model's parameters, each in one bucket."""
    names = Counter(name for bucket in report.layers for name in bucket)
    if twice := [name for name, count in names.items() if count > 1]:
        notes.broken(f"survivors of attempt {a.attempt} name {twice[0]} in {names[twice[0]]} buckets")
    known = {name.removeprefix(_PARAMETER) for manifest in _manifests(case).values() for name in _tensors(manifest) if name.startswith(_PARAMETER)}
    if known and (strangers := sorted(names.keys() - known)):
        notes.broken(f"survivors of attempt {a.attempt} name {strangers[0]!r}, which is no parameter of the checkpoints")


def _check_state(case: Case, a: Attempt, report: SurvivorReport, notes: FindingBuilder) -> None:
    """The state that survivors carried on equals a checkpoint of the same step in the same history."""
    manifest = _manifests(case).get(report.global_step)
    segment = case.path.of(report.global_step)
    if manifest is None or not report.state_digest or segment is None or segment.attempt != a.attempt:
        return
    held = digest([[name, sha] for name, sha in sorted(_tensors(manifest).items()) if not name.startswith("rng.")])
    if held != report.state_digest:
        notes.broken(f"survivors of attempt {a.attempt} report another state than the checkpoint of step {report.global_step} holds")


def _manifests(case: Case) -> dict[int, Manifest]:
    return {c.step: c.report.manifest for c in case.disk if c.report.ok and c.report.manifest}


def _tensors(manifest: Manifest) -> dict[str, str]:
    return {name: entry.sha256 for part in manifest.parts.values() for name, entry in part.tensors.items()}
