"""Holds the rest of a run, after a recovery that claims no trajectory, against an undisturbed run
that began with the run's own checkpoint after it.

Nothing computes the steps after such a recovery again, so a fault that lasts from there on
contradicts no record. The run's first checkpoint after it fixes the state, and with it everything
that follows: an undisturbed run from a copy of it must do the same, bit for bit.
"""

from __future__ import annotations

from dataclasses import replace

from ecrl_cli.history.lineage import lineage
from ecrl_cli.history.load import RunRecords
from ecrl_cli.history.rest_start import RestStart, rest_starts, unclaimed_segments, why_no_rest
from ecrl_cli.records.layout import REFERENCES
from ecrl_cli.verify.evaluations import check_against
from ecrl_cli.verify.labels import other_environment
from ecrl_cli.verify.same_input import same_input
from ecrl_cli.verify.trajectory import (
    NOT_SHOWN,
    PROMISE,
    check_checkpoints,
    check_finals,
    check_steps,
    same_trajectory,
)
from ecrl_cli.verify.verdict import INVALID, UNKNOWN, VALID, Finding, FindingBuilder
from ecrl_cli.verify.verification_input import Case


def trajectory_and_rest(case: Case) -> Finding:
    """`same_trajectory`, and the rest of the run after the last recovery that claims none."""
    finding, rest = same_trajectory(case), case.rest
    if rest is None and case.rest_doubt and finding.status not in (INVALID, UNKNOWN):
        text = f"{PROMISE} - the rest of the run: {case.rest_doubt}"
        return Finding(PROMISE, UNKNOWN, text, (finding.message, *finding.evidence))
    if rest is None:
        return replace(finding, evidence=(*finding.evidence, *_how_to_show(case)))
    commit = rest.stored.config.begins_from[1]
    start = next(s for s in rest_starts(case.run) if s.line.commit_sha256 == commit)
    of_rest = _compare_rest(case, rest, start)
    evidence = tuple(text for text in finding.evidence if text != NOT_SHOWN)
    if of_rest.status == VALID:
        return replace(
            finding,
            status=finding.status if finding.status in (INVALID, UNKNOWN) else VALID,
            message=f"{finding.message}; {of_rest.message}",
            evidence=(*evidence, *of_rest.evidence),
        )
    if finding.status == INVALID:
        return replace(finding, evidence=(*evidence, of_rest.message, *of_rest.evidence))
    return replace(of_rest, evidence=(*of_rest.evidence, finding.message, *evidence))


def _how_to_show(case: Case) -> tuple[str, ...]:
    """How the rest can be shown, or why it cannot; of a run that has ended and has such a rest."""
    if case.run.final is None or case.live or not unclaimed_segments(case.run):
        return ()
    if not rest_starts(case.run):
        return (f"nor can a run from its own checkpoint show it: {why_no_rest(case.run)}",)
    return (
        f"`ecrl verify --with-reference {case.run.layout.root.name}` holds the rest against an"
        " undisturbed run from its own checkpoint after the death",
    )


def _compare_rest(case: Case, rest: RunRecords, start: RestStart) -> Finding:
    """Everything that both have after the checkpoint, as far as the run came."""
    who, last = f"{REFERENCES}/{rest.layout.root.name}", case.path.last_step
    source = f"an undisturbed run from its own checkpoint of step {start.step}"
    notes, beside = FindingBuilder(PROMISE), replace(case, reference=rest, others=())
    theirs, saved = lineage(rest), start.line.saved_state
    if saved and saved != _resumed_state(rest, theirs.segments[0].attempt):
        notes.missing(f"{who} began with another state than is on record of step {start.step}")
    check_steps(beside, rest, theirs, last, notes, after=start.step)
    check_checkpoints(beside, rest, last, notes)
    check_against(beside, rest, theirs, last, notes)
    if (inputs := same_input(beside)).status == INVALID:
        notes.broken(inputs.message.partition(" - ")[2])
    check_finals(beside, rest, notes)
    finding = notes.finding(
        f"after the death at step {start.death_step}, the rest (steps {start.step + 1} to {last})"
        f" follows {source}, bit for bit",
        (f"held against {who}", _left_open(case, start)),
    )
    if finding.status != INVALID:
        return finding
    opening, _, text = finding.message.partition(f"{PROMISE} - ")
    about = f"after the death at step {start.death_step} the rest does not follow {source}"
    finding = replace(finding, message=f"{opening}{PROMISE} - {about}: {text}")
    code = (" ran with source_sha256 ", " ran with git_revision ")
    elsewhere = [line for line in other_environment(beside) if not any(key in line for key in code)]
    if not elsewhere:
        return finding
    text = f"{PROMISE} - {who} ran where other bits may come out: {elsewhere[0]}"
    return Finding(PROMISE, UNKNOWN, text, (finding.message, *finding.evidence))


def _resumed_state(rest: RunRecords, attempt: int) -> dict[str, str]:
    """The digests of the state that the attempt of the undisturbed run began with."""
    return next((a.resumed_state for a in rest.attempts if a.attempt == attempt), {})


def _left_open(case: Case, start: RestStart) -> str:
    """The steps that the comparison leaves open, and why it does not begin earlier."""
    first = rest_starts(case.run)[0].step
    gone = f" (the checkpoint of step {first} is gone)" if first < start.step else ""
    return (
        f"not shown: that the losses and updates of steps {start.first_death_step} to"
        f" {start.step} are right{gone}; no run computes them again"
    )
