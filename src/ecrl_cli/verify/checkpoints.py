"""Promises 5 and 6, and the account of the checkpoints: none bad was loaded, none acknowledged was lost, each has one end."""

from __future__ import annotations

import re
from collections import Counter

from ecrl_cli.config.elastic import next_change
from ecrl_cli.history.lineage import committed_as
from ecrl_cli.records.events import CHECKPOINT_ENDS, FOUND, GONE, Attempt, CheckpointLine
from ecrl_cli.verify.case import Case, checkpoint_events
from ecrl_cli.verify.stored import OnDisk, set_aside
from ecrl_cli.verify.verdict import Finding, Notes

NO_BAD, NO_LOSS, ACCOUNT = "no-bad-checkpoint", "no-acknowledged-loss", "checkpoints-accounted"
_STEP = re.compile(r"step_([0-9]{8})")

Live = dict[int, CheckpointLine]


def no_bad_checkpoint(case: Case) -> Finding:
    """Each attempt resumed from the newest committed checkpoint that is not on record as rejected; what is still there passes the guard."""
    notes = Notes(NO_BAD)
    by_path = {c.path: c for c in case.disk}
    resumed = 0
    for a in case.attempts:
        if a.resumed_from is None:
            _check_fresh(a, live_before(case, a), notes)
            continue
        resumed += 1
        _check_choice(case, a, live_before(case, a), notes)
        _check_loaded(case, a, by_path, notes)
    _check_set_aside(case, notes)
    rejected = sum(len(a.rejected) for a in case.attempts)
    if len(case.attempts) < 2:
        return notes.finding("nothing was resumed", checked=False)
    return notes.finding(f"{resumed} resumed from the newest checkpoint that was committed and not refused, {rejected} refused")


def live_before(case: Case, attempt: Attempt) -> Live:
    """By step, what was committed, not retired and not rejected when `attempt` was launched."""
    live: Live = {}
    for a in case.attempts:
        if a.attempt > attempt.attempt:
            break
        for path in (rejected.path for rejected in a.rejected):
            live.pop(step_of(path), None)
        if a.attempt < attempt.attempt:
            _apply(live, case.run.logs(a.attempt).checkpoints.events)
    return live


def live_at_end(case: Case) -> Live:
    """What must still be there."""
    if not case.attempts:
        return {}
    live = live_before(case, case.attempts[-1])
    _apply(live, case.run.logs(case.attempts[-1].attempt).checkpoints.events)
    return live


def step_of(path: str) -> int:
    """The step in the name of a checkpoint, set aside or not; -1 where it names none."""
    match = _STEP.search(path)
    return int(match[1]) if match else -1


def _apply(live: Live, events: tuple[CheckpointLine, ...]) -> None:
    for line in events:
        if line.event == "committed":
            live[line.global_step] = line
        elif line.event == "retired":
            live.pop(line.global_step, None)


def _check_fresh(a: Attempt, live: Live, notes: Notes) -> None:
    if a.memory:
        if max(live, default=0) > a.resumed_from_step:
            went = f"attempt {a.attempt} went on from memory behind step {a.resumed_from_step}"
            notes.broken(f"{went} although step {max(live)} was committed and is on no record as refused")
    elif live:
        notes.broken(f"attempt {a.attempt} began anew although step {max(live)} was committed and is on no record as refused")


def _check_choice(case: Case, a: Attempt, live: Live, notes: Notes) -> None:
    assert a.resumed_from is not None
    sha, who = a.resumed_from.commit_sha256, f"attempt {a.attempt}"
    parent = committed_as(case.run, sha, before=a.attempt)
    if parent is None:
        notes.broken(f"{who} resumed from {a.resumed_from.path} ({sha[:8]}), which no earlier attempt committed")
        return
    if (parent.global_step, step_of(a.resumed_from.path)) != (a.resumed_from_step, a.resumed_from_step):
        notes.broken(f"{who} resumed from {a.resumed_from.path} at step {a.resumed_from_step}, the commit {sha[:8]} is of step {parent.global_step}")
    if parent.global_step not in live or live[parent.global_step].commit_sha256 != sha:
        notes.broken(f"{who} resumed from step {parent.global_step}, which was retired, refused or replaced before")
    elif max(live) > parent.global_step:
        notes.broken(f"{who} resumed from step {parent.global_step} although step {max(live)} was committed and is on no record as refused")


def _check_loaded(case: Case, a: Attempt, by_path: dict[str, OnDisk], notes: Notes) -> None:
    """What was loaded, if it is still there under its name, is what was committed and passes the guard."""
    assert a.resumed_from is not None
    there = by_path.get(a.resumed_from.path)
    if there is None:
        return
    if not there.report.ok:
        notes.broken(f"attempt {a.attempt} resumed from {there.path}, which the guard refuses: {there.report.layer}: {there.report.reason}")
    elif there.report.commit_sha256 not in {line.commit_sha256 for line in checkpoint_events(case.run) if line.event == "committed"}:
        notes.broken(f"{there.path} is not the checkpoint that attempt {a.attempt} resumed from: no line acknowledges its commit")


def _check_set_aside(case: Case, notes: Notes) -> None:
    """What lies set aside under a commit of its own was refused by an attempt that says so.

    Without atomic installation a dead writer leaves half a checkpoint under the final name, which the next one sets aside by itself.
    """
    if not case.run.stored.config.write_mode.atomic:
        return
    refused = Counter(step_of(rejected.path) for a in case.attempts for rejected in a.rejected)
    for step, count in Counter(set_aside(case.run)).items():
        if count > refused[step]:
            notes.broken(f"{count} checkpoints of step {step} lie set aside, {refused[step]} are on record as refused")


def no_acknowledged_loss(case: Case) -> Finding:
    """Everything committed and neither retired nor set aside is there, whole, under its commit; nothing is there that no line acknowledges."""
    notes = Notes(NO_LOSS)
    live, disk = live_at_end(case), {c.step: c for c in case.disk}
    if live and not case.run.layout.checkpoints.is_dir():
        notes.missing("the folder checkpoints is not here")
        return notes.finding("")
    lost = [text for step, line in sorted(live.items()) if not _outlived(case, step) and (text := _lost(line, disk.get(step)))]
    lost += _found_gone(case)
    promised = case.run.stored.config.write_mode.name == "atomic_dirsync"
    for text in lost if promised else ():
        notes.broken(text)
    known = {line.commit_sha256 for line in checkpoint_events(case.run) if line.event == "committed"}
    for c in disk.values():
        if c.report.ok and case.ended and c.report.commit_sha256 not in known:
            notes.broken(f"{c.path} is committed on disk and no line acknowledges it")
        if c.report.ok and c.previous is not None and c.previous not in known:
            notes.broken(f"{c.path} follows the commit {c.previous[:8]}, which no line acknowledges")
    if promised or not lost:
        return notes.finding(f"{len(live)} committed checkpoints are there and whole", checked=bool(known or disk))
    said = f"not promised under {case.run.stored.config.write_mode.name}; {len(lost)} lost, {len(live)} at the end"
    return notes.finding(said, lost, checked=False)


def _found_gone(case: Case) -> list[str]:
    """What a recovery missed: it may have been committed again since."""
    gone = [(a.attempt, refused.path) for a in case.attempts for refused in a.rejected if refused.reason == GONE]
    return [f"{path} was committed and was gone when attempt {attempt} was launched" for attempt, path in gone]


def _outlived(case: Case, step: int) -> bool:
    """Whether retention was free to remove `step`: a writer that dies between removing and saying so leaves no `retired` line."""
    return sum(c.report.ok and c.step > step for c in case.disk) >= case.run.stored.config.checkpoint.keep


def _lost(line: CheckpointLine, there: OnDisk | None) -> str:
    """Why the checkpoint of `line` is lost, or nothing."""
    if there is None:
        return f"step {line.global_step} was committed (attempt {line.attempt}) and is gone"
    if not there.report.ok:
        return f"step {line.global_step} was committed and the guard refuses it: {there.report.layer}: {there.report.reason}"
    if there.report.commit_sha256 != line.commit_sha256:
        return f"step {line.global_step} was committed as {str(line.commit_sha256)[:8]} and another checkpoint lies there"
    return ""


def checkpoints_accounted(case: Case) -> Finding:
    """submitted = committed + failed + lost, one by one; and every checkpoint that was due was submitted."""
    notes = Notes(ACCOUNT)
    submitted = 0
    for a in case.attempts:
        lines = case.run.logs(a.attempt).checkpoints.events
        handed = Counter(line.global_step for line in lines if line.event == "submitted")
        ends = Counter(line.global_step for line in lines if line.event in CHECKPOINT_ENDS)
        ends -= _taken_back(lines)
        submitted += sum(handed.values())
        for step in sorted(set(handed) | set(ends)):
            if handed[step] != 1 or ends[step] != 1:
                text = f"step {step} of attempt {a.attempt} was submitted {handed[step]} times and ended {ends[step]} times"
                (notes.broken if ends[step] or case.ended else notes.missing)(text)
        for line in lines:
            if line.event == "committed" and not line.commit_sha256:
                notes.broken(f"step {line.global_step} of attempt {a.attempt} was committed under no commit")
        for step in sorted(_due(case, a) - set(handed)):
            notes.broken(f"step {step} of attempt {a.attempt} was due and no checkpoint was submitted")
        if a.outcome == "resized" and not any(line.event == "committed" and line.global_step == a.last_step for line in lines):
            notes.broken(f"attempt {a.attempt} was resized behind step {a.last_step}, which it did not commit")
    return notes.finding(f"{submitted} submitted, each ended once", checked=submitted > 0)


def _taken_back(lines: tuple[CheckpointLine, ...]) -> Counter[int]:
    """By step, `failed` lines that recovery corrected: the checkpoint was there all the same."""
    failed = {line.global_step for line in lines if line.event == "failed"}
    return Counter(line.global_step for line in lines if line.event == "committed" and line.reason == FOUND and line.global_step in failed)


def _due(case: Case, a: Attempt) -> set[int]:
    """Steps behind which rank 0 went on, and behind which a checkpoint belongs."""
    config, logs = case.run.stored.config, case.run.logs(a.attempt)
    if config.checkpoint.strategy == "none" or 0 not in logs.ranks:
        return set()
    steps = [line.global_step for line in logs.ranks[0].events]
    passed = steps if logs.final or a.outcome == "resized" else steps[:-1]
    last = {config.target_steps} if config.checkpoint.final else set()
    last |= {step for step in [next_change(config, a.resumed_from_step)] if step}
    return {step for step in passed if step % config.checkpoint.every == 0 or step in last}
