"""Promises on checkpoints: no bad one was loaded, no acknowledged one was lost, each ended once."""

from __future__ import annotations

from collections import Counter

from ecrl_cli.config.elastic import next_change
from ecrl_cli.config.legs import targets
from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.history.lineage import steps_of
from ecrl_cli.records.events import CHECKPOINT_ENDS, FOUND, GONE, Attempt, CheckpointLine
from ecrl_cli.records.survivor_records import SURVIVORS
from ecrl_cli.verify.checkpoint_folder import (
    check_folder,
    tail_may_be_lost,
    tails_may_be_lost,
    writer_died,
)
from ecrl_cli.verify.checkpoint_lines import check_lines
from ecrl_cli.verify.disk_state import StoredCheckpoint
from ecrl_cli.verify.disturbance import ENDED_WELL
from ecrl_cli.verify.recovery_choice import check_choices
from ecrl_cli.verify.retention import step_of
from ecrl_cli.verify.verdict import Finding, FindingBuilder
from ecrl_cli.verify.verification_input import Case, checkpoint_events

NO_BAD, NO_LOSS, ACCOUNT = "no-bad-checkpoint", "no-acknowledged-loss", "checkpoints-accounted"
# earlier versions did not
_HELD = "; reference=always keeps the first one after the last death"


def no_bad_checkpoint(case: Case) -> Finding:
    """Each attempt resumed from the newest committed checkpoint that was not rightly rejected;
    those still on disk pass the integrity check.
    """
    notes = FindingBuilder(NO_BAD)
    resumed = check_choices(case, notes)
    rejected = sum(len(a.rejected) for a in case.attempts)
    if len(case.attempts) < 2:
        return notes.finding("nothing was resumed", checked=False)
    if not resumed:
        return notes.finding(
            f"no attempt resumed from a checkpoint, and none had to; {rejected} refused"
        )
    if kind := strategy_of(case.run.stored.config).checkpointer:
        what = (
            f"{resumed} resumed from the newest that was committed and loaded, {rejected} refused"
        )
        return notes.finding(
            f"{what}; what its files hold only {kind.name} can read: state-restored says what the"
            " ranks got",
            checked=False,
        )
    return notes.finding(
        f"{resumed} resumed from the newest checkpoint that was committed and not refused,"
        f" {rejected} refused"
    )


def no_acknowledged_loss(case: Case) -> Finding:
    """Every committed checkpoint that was neither retired nor quarantined is on disk, complete and
    unchanged; every one on disk is acknowledged.
    """
    notes = FindingBuilder(NO_LOSS)
    if case.run.supervisor is None:
        notes.missing(
            "supervisor.json is missing: which checkpoints the attempts had and refused is not"
            " known"
        )
        return notes.finding("")
    history = case.checkpoints.end
    live, disk = history.live, {c.step: c for c in case.disk}
    for each in history.overreached:
        line, who = each.line, f"attempt {each.line.attempt} retired step {each.line.global_step}"
        where = f" ({line.path})" if line.path else ""
        lost_lines = tails_may_be_lost(case, line.attempt - 1)  # of newer checkpoints
        text = (
            f"{who} while {each.newer} newer checkpoints were there, checkpoint.keep is"
            f" {history.keep}{where}{_HELD if each.held else ''}"
        )
        (notes.missing if lost_lines or each.held else notes.broken)(text)
    if live and not case.run.layout.checkpoints.is_dir():
        notes.missing("the folder checkpoints is not here")
        return notes.finding("")
    lost = [
        text
        for step, line in sorted(live.items())
        if not _retired_unsaid(case, step) and (text := _lost(line, disk.get(step)))
    ]
    # What a recovery found missing, even if it was committed again later.
    gone = [
        (a.attempt, refused.path)
        for a in case.attempts
        for refused in a.rejected
        if refused.reason == GONE
    ]
    lost += [
        f"{path} was committed and was gone when attempt {attempt} was launched"
        for attempt, path in gone
    ]
    kind, mode = (
        strategy_of(case.run.stored.config).checkpointer,
        case.run.stored.config.write_mode.name,
    )
    promised = kind.durable if kind else mode == "atomic_dirsync"
    for text in lost if promised else ():
        notes.broken(text)
    known = {
        line.commit_sha256 for line in checkpoint_events(case.run) if line.event == "committed"
    }
    for c in disk.values():
        unsaid = notes.missing if tails_may_be_lost(case, len(case.attempts)) else notes.broken
        if c.report.ok and case.ended and c.report.commit_sha256 not in known:
            unsaid(f"{c.path} is committed on disk and no line acknowledges it")
        if c.report.ok and c.previous is not None and c.previous not in known:
            unsaid(f"{c.path} follows the commit {c.previous[:8]}, which no line acknowledges")
        elif c.report.ok and not kind:
            _check_predecessor(case, c, notes)
    if kind and not lost:
        count = f"{len(live)} committed checkpoints are there with as many bytes as recorded"
        return notes.finding(f"{count}; what they hold only {kind.name} can read", checked=False)
    if promised or not lost:
        return notes.finding(
            f"{len(live)} committed checkpoints are there and whole", checked=bool(known or disk)
        )
    message = (
        f"not promised by {kind.name if kind else mode}; {len(lost)} lost, {len(live)} at the end"
    )
    return notes.finding(message, lost, checked=False)


def _check_predecessor(case: Case, c: StoredCheckpoint, notes: FindingBuilder) -> None:
    """The commit of `c` names the newest older checkpoint that was there when it was made, by the
    lines before its own. One that is not there now may have been damaged then, and passed over.
    """
    made, commits = case.committed(c), case.checkpoints.predecessors
    if made is None or made.reason or c.report.commit_sha256 not in commits:
        return
    newest = commits[c.report.commit_sha256]
    lines = {line.commit_sha256: line for line in checkpoint_events(case.run) if line.commit_sha256}
    named, due = lines.get(c.previous or ""), lines.get(newest or "")
    passed_over = due is not None and (named is None or named.global_step < due.global_step)
    # one of a step that an attempt refused was damaged; one may be there before it is found
    refused = {step_of(each.path) for a in case.attempts for each in a.rejected}
    explained = due and due.global_step in refused if passed_over else named and named.reason
    if c.previous == newest or explained:
        return
    there = any(other.report.ok and other.report.commit_sha256 == newest for other in case.disk)
    unsaid = tails_may_be_lost(case, len(case.attempts)) or (passed_over and not there)
    (notes.missing if unsaid else notes.broken)(
        f"{c.path} follows {_of_step(named)} by its commit, the newest older checkpoint was"
        f" {_of_step(due)}"
    )


def _of_step(line: CheckpointLine | None) -> str:
    return f"that of step {line.global_step}" if line else "none"


def _retired_unsaid(case: Case, step: int) -> bool:
    """Whether retention was allowed to remove `step` and may have died before recording it: then
    there is no `retired` line.
    """
    since = case.checkpoints.end.superfluous.get(step)
    if sum(c.report.ok and c.step > step for c in case.disk) < case.checkpoints.end.keep:
        return False
    # with the lines of newer ones, or of the removal
    if tails_may_be_lost(case, len(case.attempts)):
        return True
    if since is None:
        return False
    return writer_died(case) or any(
        a.attempt >= since and a.outcome not in ENDED_WELL for a in case.attempts
    )


def _lost(line: CheckpointLine, there: StoredCheckpoint | None) -> str:
    """Why the checkpoint of `line` is lost; empty if it is not."""
    if there is None:
        return f"step {line.global_step} was committed (attempt {line.attempt}) and is gone"
    if not there.report.ok:
        return (
            f"step {line.global_step} was committed and the integrity check refuses it:"
            f" {there.report.layer}: {there.report.reason}"
        )
    if there.report.commit_sha256 != line.commit_sha256:
        return (
            f"step {line.global_step} was committed as {str(line.commit_sha256)[:8]} and another"
            " checkpoint lies there"
        )
    if there.bytes is not None and line.bytes and there.bytes != line.bytes:
        return (
            f"step {line.global_step} was committed with {line.bytes} bytes, there are"
            f" {there.bytes}"
        )
    return ""


def checkpoints_accounted(case: Case) -> Finding:
    """submitted = committed + failed + lost, for each checkpoint; and every checkpoint that was due
    was submitted.
    """
    notes = FindingBuilder(ACCOUNT)
    submitted = 0
    check_lines(case, notes)
    check_folder(case, notes)
    for a in case.attempts:
        lines = case.run.logs(a.attempt).checkpoints.events
        handed = Counter(line.global_step for line in lines if line.event == "submitted")
        ends = Counter(line.global_step for line in lines if line.event in CHECKPOINT_ENDS)
        ends -= _taken_back(lines)
        submitted += sum(handed.values())
        for step in sorted(set(handed) | set(ends)):
            if handed[step] != 1 or ends[step] != 1:
                text = (
                    f"step {step} of attempt {a.attempt} was submitted {handed[step]} times and"
                    f" ended {ends[step]} times"
                )
                unsaid = not handed[step] and ends[step] == 1 and tail_may_be_lost(case, a.attempt)
                (notes.broken if (ends[step] or case.ended) and not unsaid else notes.missing)(text)
        for line in lines:
            if line.event == "committed" and not line.commit_sha256:
                notes.broken(
                    f"step {line.global_step} of attempt {a.attempt} was committed under no commit"
                )
        for step in sorted(_due(case, a) - set(handed)):
            unsaid = tail_may_be_lost(case, a.attempt) and step > max(handed, default=0)
            (notes.missing if unsaid else notes.broken)(
                f"step {step} of attempt {a.attempt} was due and no checkpoint was submitted"
            )
        if (owed := _owed(case, a)) and owed not in handed:
            (notes.missing if tail_may_be_lost(case, a.attempt) else notes.broken)(
                f"attempt {a.attempt} went on from memory after step {owed}, whose checkpoint it"
                " owed, and submitted none"
            )
        if a.outcome == "resized" and not any(
            line.event == "committed" and line.global_step == a.last_step for line in lines
        ):
            notes.broken(
                f"attempt {a.attempt} was resized after step {a.last_step}, which it did not commit"
            )
    return notes.finding(f"{submitted} submitted, each ended once", checked=submitted > 0)


def _taken_back(lines: tuple[CheckpointLine, ...]) -> Counter[int]:
    """By step, `failed` lines that recovery corrected: the checkpoint was on disk after all."""
    failed = {line.global_step for line in lines if line.event == "failed"}
    return Counter(
        line.global_step
        for line in lines
        if line.event == "committed" and line.reason == FOUND and line.global_step in failed
    )


def _due(case: Case, a: Attempt) -> set[int]:
    """The steps that rank 0 passed and after which a checkpoint is due."""
    config, logs = case.run.stored.config, case.run.logs(a.attempt)
    if not strategy_of(config).saves or 0 not in logs.ranks:
        return set()
    steps, agreed = steps_of(logs.ranks[0]), _agreed_stop(case, a)
    passed = steps if logs.final or a.outcome == "resized" or agreed else steps[:-1]
    last = set(targets(config)) if config.checkpoint.final else set()
    last |= agreed
    last |= {step for step in [next_change(config, a.resumed_from_step)] if step}
    return {step for step in passed if step % config.checkpoint.every == 0 or step in last}


def _owed(case: Case, a: Attempt) -> int:
    """The step after which `a` went on from memory and whose checkpoint it had to save first: due,
    and submitted by none of the attempts that it continues. 0 if there is none.

    A step before that one may be without a checkpoint: whose rank 0 died in its save while the
    others finished the next step.
    """
    step, config, logs = a.resumed_from_step, case.run.stored.config, case.run.logs(a.attempt)
    due = step % config.checkpoint.every == 0 or (
        config.checkpoint.final and step in targets(config)
    )
    beyond = 0 in logs.ranks and max(steps_of(logs.ranks[0]), default=0) > step
    passed = beyond or logs.final or a.outcome == "resized"
    if not (a.memory and step and due and passed and strategy_of(config).saves):
        return 0
    before = case.attempt(a.continues) if a.continues is not None else None
    while a.memory == SURVIVORS and before is not None:
        lines = case.run.logs(before.attempt).checkpoints.events
        if any(line.event == "submitted" and line.global_step == step for line in lines):
            return 0
        older = before.continues if before.resumed_from_step == step else None
        # a record that names itself would be followed for ever
        before = case.attempt(older) if older is not None and older < before.attempt else None
    return step


def _agreed_stop(case: Case, a: Attempt) -> set[int]:
    """The step after which the ranks of a stopped attempt ended by themselves, if they did: each
    closed its last span, `idle`, after it. They do so only where they had agreed to stop there.
    """
    ends = set[tuple[str, int]]()
    for rank in range(a.world_size if a.outcome == "stopped" else 0):
        account, lines = case.spans.of(a.attempt, rank), case.run.logs(a.attempt).ranks.get(rank)
        if not (account and account.spans and lines and lines.events):
            return set()
        span, line = account.spans[-1], lines.events[-1]
        ends |= {(span.category, span.global_step), ("idle", line.global_step)}
    return {step for _, step in ends} if len(ends) == 1 else set()
