"""Recomputes from the journals what each attempt had to resume from, and checks its rejections
again.
"""

from __future__ import annotations

import re
from collections import Counter

from ecrl_cli.errors import plural
from ecrl_cli.history.lineage import began_initially, committed_as
from ecrl_cli.records.events import GONE, LOADER, Attempt, Rejected
from ecrl_cli.verify.disk_state import Quarantined, StoredCheckpoint, quarantined_steps
from ecrl_cli.verify.retention import Live, step_of
from ecrl_cli.verify.verdict import FindingBuilder
from ecrl_cli.verify.verification_input import Case, checkpoint_events

NOT_ACKNOWLEDGED = "is not the checkpoint that was acknowledged"
# Rejections for a transient file-system error, or for what only the run's own user and key can
# check, cannot be repeated.
_NOT_REPEATABLE = re.compile(
    r"^E[A-Z0-9]+ at |belongs to uid |hmac_sha256|does not fit into memory"
)

_OF_CONTENT = ("hash", "tensors", "finite")  # layers of the integrity check


def check_choices(case: Case, notes: FindingBuilder) -> int:
    """Every attempt began with the newest checkpoint that was not rightly rejected; returns how
    many resumed from one.
    """
    by_path = {c.path: c for c in case.disk}
    history = case.checkpoints
    resumed = 0
    for a in case.attempts:
        if a.resumed_from is None or began_initially(case.run, a):
            _check_fresh(a, history.found[a.attempt], history.left[a.attempt], notes)
            continue
        resumed += 1
        _check_choice(case, a, history.left[a.attempt], notes)
        _check_loaded(case, a, by_path, notes)
    _check_refusals(case, notes)
    _check_quarantined(case, notes)
    return resumed


def _check_fresh(a: Attempt, available: Live, not_rejected: Live, notes: FindingBuilder) -> None:
    """An attempt without a checkpoint began from scratch or from memory, with no newer committed
    checkpoint left.
    """
    if a.memory:
        if max(not_rejected, default=0) > a.resumed_from_step:
            went = f"attempt {a.attempt} went on from memory after step {a.resumed_from_step}"
            notes.broken(
                f"{went} although step {max(not_rejected)} was committed and is on no record as"
                " refused"
            )
    elif not_rejected:
        notes.broken(
            f"attempt {a.attempt} began anew although step {max(not_rejected)} was committed and is"
            " on no record as refused"
        )
    elif available:
        notes.broken(
            f"attempt {a.attempt} began anew and refused all"
            f" {plural(len(available), 'checkpoint')}: a run that has none left ends instead"
        )


def _check_choice(case: Case, a: Attempt, live: Live, notes: FindingBuilder) -> None:
    assert a.resumed_from is not None
    sha, who = a.resumed_from.commit_sha256, f"attempt {a.attempt}"
    parent = committed_as(case.run, sha, before=a.attempt)
    if parent is None:
        notes.broken(
            f"{who} resumed from {a.resumed_from.path} ({sha[:8]}), which no earlier attempt"
            " committed"
        )
        return
    if (parent.global_step, step_of(a.resumed_from.path)) != (
        a.resumed_from_step,
        a.resumed_from_step,
    ):
        notes.broken(
            f"{who} resumed from {a.resumed_from.path} at step {a.resumed_from_step}, the commit"
            f" {sha[:8]} is of step {parent.global_step}"
        )
    gone = parent.global_step in case.checkpoints.gone[a.attempt]
    if gone or parent.global_step not in live or live[parent.global_step].commit_sha256 != sha:
        notes.broken(
            f"{who} resumed from step {parent.global_step}, which was retired, refused or replaced"
            " before"
        )
    elif max(live) > parent.global_step:
        notes.broken(
            f"{who} resumed from step {parent.global_step} although step {max(live)} was committed"
            " and is on no record as refused"
        )
    for rejected in a.rejected:
        if 0 <= step_of(rejected.path) <= parent.global_step:
            notes.broken(
                f"{who} refused {rejected.path}, which is not newer than what it resumed from: it"
                " had no reason to look at it"
            )


def _check_loaded(
    case: Case, a: Attempt, by_path: dict[str, StoredCheckpoint], notes: FindingBuilder
) -> None:
    """The loaded checkpoint, if still under its name, is the committed one and passes the integrity
    check.
    """
    assert a.resumed_from is not None
    there = by_path.get(a.resumed_from.path)
    if there is None:
        return
    if not there.report.ok:
        notes.broken(
            f"attempt {a.attempt} resumed from {there.path}, which the integrity check refuses:"
            f" {there.report.layer}: {there.report.reason}"
        )
    elif there.report.commit_sha256 not in {
        line.commit_sha256 for line in checkpoint_events(case.run) if line.event == "committed"
    }:
        notes.broken(
            f"{there.path} is not the checkpoint that attempt {a.attempt} resumed from: no line"
            " acknowledges its commit"
        )


def _check_refusals(case: Case, notes: FindingBuilder) -> None:
    """Each rejection is proved by a quarantined checkpoint, or by the one still under its name,
    failing the integrity check again.
    """
    aside: dict[int, list[Quarantined]] = {}
    for each in case.quarantined:
        aside.setdefault(each.step, []).append(each)
    steps = {line.global_step for line in checkpoint_events(case.run)}
    needed: Counter[int] = Counter()
    pending: set[int] = set()
    for a in case.attempts:
        for rejected in a.rejected:
            step, who = (
                step_of(rejected.path),
                (
                    f"attempt {a.attempt} refused {rejected.path} ({rejected.layer}:"
                    f" {rejected.reason})"
                ),
            )
            if step not in steps and not aside.get(step):
                notes.broken(f"{who}, which nobody saved")
            elif rejected.layer == LOADER:
                _check_unloadable(case, a, rejected, notes)
            elif rejected.reason == GONE:
                _check_gone(case, a, rejected, aside.get(step, []), notes)
            else:
                _check_sound(case, a, rejected, aside.get(step, []), notes)
                # rejected again before it was quarantined: the supervisor died in between
                needed[step] += step not in pending
                pending.add(step)
        pending -= {
            line.global_step
            for line in case.run.logs(a.attempt).checkpoints.events
            if line.event == "committed"
        }
    still_there = {c.step for c in case.disk if not c.report.ok}
    for step, count in sorted(needed.items()):
        there = len(aside.get(step, ())) + (step in still_there)
        if there < count and step in steps:
            notes.missing(
                f"{count} refused checkpoints of step {step} cannot be looked at again: {there} are"
                " still there"
            )


def _check_gone(
    case: Case, a: Attempt, rejected: Rejected, aside: list[Quarantined], notes: FindingBuilder
) -> None:
    """A checkpoint recorded as gone exists nowhere."""
    line = case.checkpoints.found[a.attempt].get(step_of(rejected.path))
    if line is None:
        notes.broken(
            f"attempt {a.attempt} missed {rejected.path}, which was not there by the journals"
            " either"
        )
        return
    places = [(c.path, c.report) for c in case.disk] + [(each.path, each.report) for each in aside]
    for path, report in places:
        if report.ok and report.commit_sha256 == line.commit_sha256:
            notes.broken(
                f"attempt {a.attempt} says that {rejected.path} is gone, and {path} is that"
                " checkpoint"
            )


def _check_unloadable(case: Case, a: Attempt, rejected: Rejected, notes: FindingBuilder) -> None:
    """A rank of an earlier attempt was to resume from it and could not load it, by its own
    record.
    """
    tried = [
        each
        for before in case.run.attempt_logs
        if before.attempt < a.attempt
        for each in before.unloadable.values()
    ]
    if not any((each.path, each.reason) == (rejected.path, rejected.reason) for each in tried):
        notes.broken(
            f"attempt {a.attempt} refused {rejected.path}, which no rank is on record to have"
            " failed to load"
        )


def _check_sound(
    case: Case, a: Attempt, rejected: Rejected, aside: list[Quarantined], notes: FindingBuilder
) -> None:
    """No complete copy of the acknowledged checkpoint is quarantined under that step, or still
    under its name.
    """
    step = step_of(rejected.path)
    line = case.checkpoints.found[a.attempt].get(step)
    if line is None and (len(aside) > 1 or rejected.reason == NOT_ACKNOWLEDGED):
        return  # which of them it was is not on record
    places = [(each.path, each.report) for each in aside]
    places += [(c.path, c.report) for c in case.disk if c.step == step and line is not None]
    for path, report in places:
        if report.ok and (line is None or report.commit_sha256 == line.commit_sha256):
            text = (
                f"attempt {a.attempt} refused {rejected.path} ({rejected.layer}:"
                f" {rejected.reason}), and {path} passes the integrity check"
            )
            (notes.missing if _NOT_REPEATABLE.search(rejected.reason) else notes.broken)(text)
    _check_reason(a, rejected, aside, notes)


def _check_reason(
    a: Attempt, rejected: Rejected, aside: list[Quarantined], notes: FindingBuilder
) -> None:
    """The checkpoint set aside, if there is one, fails the same check for the same reason: where it
    is the content that fails, whose reason names no folder of a machine.
    """
    report = aside[0].report if len(aside) == 1 else None
    again = rejected.reason != NOT_ACKNOWLEDGED and not _NOT_REPEATABLE.search(rejected.reason)
    by_content = report and not report.ok and report.layer in _OF_CONTENT
    if report and by_content and again and report.reason != rejected.reason:
        notes.missing(
            f"attempt {a.attempt} refused {rejected.path} ({rejected.layer}: {rejected.reason}),"
            f" and {aside[0].path} is refused for another reason ({report.layer}: {report.reason})"
        )


def _check_quarantined(case: Case, notes: FindingBuilder) -> None:
    """Every quarantined checkpoint with a valid commit was rejected by an attempt on record.

    Without atomic installation a dead writer leaves half a checkpoint under the final name, which
    the next writer quarantines by itself.
    """
    if not case.run.stored.config.write_mode.atomic:
        return
    refused = Counter(step_of(rejected.path) for a in case.attempts for rejected in a.rejected)
    for step, count in Counter(quarantined_steps(case.run)).items():
        if count > refused[step]:
            notes.broken(
                f"set aside: {plural(count, 'checkpoint')} of step {step}, on record as refused:"
                f" {refused[step]}"
            )
