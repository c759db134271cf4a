"""What each kind of failure must leave behind: the death of its attempt, or the evidence of what it did to one that lived on."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from itertools import pairwise

from ecrl_cli.config.fault_spec import STARTING
from ecrl_cli.config.schema import BACKGROUND
from ecrl_cli.failures.fault_kind import NON_FATAL
from ecrl_cli.failures.registry import STRIKES
from ecrl_cli.failures.storage_faults import POINTS, SLOW_SAVES
from ecrl_cli.records.events import CHECKPOINT_ENDS, Attempt, CheckpointLine, InjectedFault, PlannedFailure, SupervisorSession
from ecrl_cli.records.survivor_records import SURVIVED
from ecrl_cli.verify.verdict import FindingBuilder
from ecrl_cli.verify.verification_input import Case

# How the first casualty of a kind ends: (exit code, signal).
DEATHS: dict[str, tuple[int | None, int | None]] = {
    "exit": (137, None),
    "kill": (None, 9),
    "writer": (None, 9),
    "raise": (1, None),
    "oom": (1, None),
    "nan": (1, None),
    "readonly": (5, None),
}
_HANGS = ("stop", "partition")
_GOES_ON = ("term",)  # its victim works on until it is told to stop
_INSIDE = ("forward", "backward", "optimizer")


def ends_attempt(entry: PlannedFailure, case: Case) -> bool:
    """Whether the attempt that the failure strikes comes to its end by it."""
    background = case.run.stored.config.checkpoint.strategy in BACKGROUND
    return entry.kind not in NON_FATAL and not (entry.kind == "writer" and background) and entry.moment != "rest"


def check_effect(case: Case, fired: InjectedFault, entry: PlannedFailure, notes: FindingBuilder) -> None:
    """The attempt ended of it, the right rank, the right way, at the right step; or lived on and shows what happened to it."""
    a = case.attempt(fired.attempt)
    if entry.kind == "corrupt":
        _check_damage(case, fired, notes)
    elif case.run.supervisor is None:
        notes.missing(f"entry {fired.index} fired in attempt {fired.attempt}: supervisor.json, which would say how that ended, is missing")
    elif a is None:
        if entry.moment == "rest":  # the supervisor died before the next attempt began
            _check_stay(case, fired, notes)
        else:
            notes.broken(f"entry {fired.index} fired in attempt {fired.attempt}, which supervisor.json does not know")
    elif ends_attempt(entry, case):
        _check_end(case, a, fired, entry, notes)
        _check_place(case, a, fired, entry, notes)
    elif entry.kind == "supervisor":
        _check_stay(case, fired, notes)
    elif entry.kind == "slow_rank":
        _check_slow_rank(case, fired, entry, notes)
    elif entry.kind in ("enospc", "eio", "slow_disk", "writer"):
        _check_save(case, a, fired, entry, notes)


def death(a: Attempt) -> str:
    return f"rank {a.rank}, exit code {a.exit_code}, signal {a.signal}"


def _check_end(case: Case, a: Attempt, fired: InjectedFault, entry: PlannedFailure, notes: FindingBuilder) -> None:
    who, final = f"entry {fired.index}", case.run.logs(a.attempt).final
    if entry.moment == "wall" and final and final.at <= fired.at:
        return  # its time came when all was done and on record, before the last process had left
    fatal = [pair for pair in _fatal(case, a, fired, entry) if pair[1].kind not in _GOES_ON]
    explained = any(_ended_by(case, a, f, e) for f, e in fatal)
    if entry.kind == "term":
        _check_told(case, a, fired, explained, notes)
        return
    if a.outcome in ("completed", "resized"):
        notes.broken(f"{who} fired in attempt {a.attempt}, which {'completed' if a.outcome == 'completed' else 'ended well to be resized'}")
    if a.outcome in ("died", "hung", SURVIVED) and not explained:
        notes.broken(f"{who} ({fired.kind} of rank {fired.rank}) is not how attempt {a.attempt} {a.outcome}: {death(a)}")
    if a.outcome == "stopped" and not explained:
        _check_stopped(case, a, fired, notes)
    if a.outcome == "hung" and a.hang is None:
        notes.broken(f"{who}: attempt {a.attempt} hung, and no hang is on record")
    if entry.kind in ("supervisor", "readonly") and case.completed and not any(later.session > a.session for later in case.attempts):
        notes.broken(f"{who} ({fired.kind}) ended the supervisor's stay, and no other followed")


def _check_told(case: Case, a: Attempt, fired: InjectedFault, explained: bool, notes: FindingBuilder) -> None:
    """The supervisor received the signal, and the attempt was stopped by it unless it came to its end first."""
    who, stay = f"entry {fired.index} told the supervisor to stop", _stay(case, a)
    if stay and stay.signals is not None and signal.SIGTERM not in stay.signals:
        notes.broken(f"{who} in attempt {a.attempt}, and its stay received {list(stay.signals) or 'no signal'}")
    if not stopped(case.attempts, a) and not explained:
        notes.broken(f"{who} in attempt {a.attempt}, which {a.outcome}: {death(a)}")
    elif a.outcome == "completed" and stay and stay.signals is None and stay.ended_at is not None:
        notes.missing(f"{who} in attempt {a.attempt}, which completed, and whether the signal came is on no record")


def _check_stopped(case: Case, a: Attempt, fired: InjectedFault, notes: FindingBuilder) -> None:
    """An attempt that was stopped before its death was seen was stopped by somebody, and was the last of its stay."""
    who, stay, following = f"entry {fired.index} ({fired.kind})", _stay(case, a), case.attempt(a.attempt + 1)
    if following and following.session == a.session:
        notes.broken(
            f"{who} fired in attempt {a.attempt}, which is said to have been stopped, and the same stay went on with attempt {following.attempt}"
        )
    elif stay and stay.signals == ():
        notes.broken(f"{who} fired in attempt {a.attempt}, which is said to have been stopped, and its stay received no signal")


def _stay(case: Case, a: Attempt) -> SupervisorSession | None:
    sessions = case.run.supervisor.sessions if case.run.supervisor else ()
    return sessions[a.session] if 0 <= a.session < len(sessions) else None


def check_writer_deaths(case: Case, notes: FindingBuilder) -> None:
    """As many background writers died in a stay as were killed by the plan, or more."""
    if case.run.stored.config.checkpoint.strategy not in BACKGROUND or case.run.supervisor is None:
        return
    sessions = {a.attempt: a.session for a in case.attempts}
    struck = [sessions.get(fired.attempt) for fired in case.run.fired if fired.kind == "writer"]
    for number, stay in enumerate(case.run.supervisor.sessions):
        if stay.writer_deaths is not None and stay.writer_deaths < struck.count(number):
            notes.broken(f"{struck.count(number)} background writers were killed by the plan in stay {number}, {stay.writer_deaths} died")


def stopped(attempts: Sequence[Attempt], a: Attempt) -> bool:
    """Whether `a` ended as one that is told to stop, or its survivors went on and did."""
    later = [each for each in attempts if each.continues == a.attempt and a.outcome == SURVIVED]
    return a.outcome in ("stopped", "completed") or any(stopped(attempts, each) for each in later)


def _fatal(case: Case, a: Attempt, fired: InjectedFault, entry: PlannedFailure) -> list[tuple[InjectedFault, PlannedFailure]]:
    """All that was to end `a`: of several failures in one instant, one is seen first."""
    planned = {each.index: each for each in case.run.plan or ()}
    others = [(f, planned[f.index]) for f in case.run.fired if f.attempt == a.attempt and f.index in planned and f is not fired]
    return [(fired, entry), *(pair for pair in others if ends_attempt(pair[1], case))]


def _check_stay(case: Case, fired: InjectedFault, notes: FindingBuilder) -> None:
    """The supervisor that was struck between two attempts stayed no longer."""
    sessions = case.run.supervisor.sessions if case.run.supervisor else ()
    if case.completed and not any(stay.ended_at is None and stay.started_at <= fired.at <= after.started_at for stay, after in pairwise(sessions)):
        notes.broken(f"entry {fired.index} struck the supervisor, and its stay went on")


def _ended_by(case: Case, a: Attempt, fired: InjectedFault, entry: PlannedFailure) -> bool:
    """Whether `a` ended as this failure ends one. Nobody saw how where the supervisor was killed first."""
    end = (a.exit_code, a.signal)
    if end == (None, None) and a.outcome == "died":
        sessions = case.run.supervisor.sessions if case.run.supervisor else ()
        return not 0 <= a.session < len(sessions) or sessions[a.session].ended_at is None
    if a.outcome == "hung" or entry.kind in _HANGS:
        named = a.hang.ranks if a.hang else ()
        blamed = not named or entry.kind == "partition" or bool({fired.rank, *entry.others} & set(named))
        return entry.kind in _HANGS and ((a.outcome == "hung" and blamed) or end == (1, None))
    peers = end == (1, None)  # of ranks that end of errors, a survivor may be seen before the victim
    return end == DEATHS.get(entry.kind) and (peers or a.rank in (fired.rank, *entry.others, None))


def _check_place(case: Case, a: Attempt, fired: InjectedFault, entry: PlannedFailure, notes: FindingBuilder) -> None:
    """The victim went as far as the moment says and no further, and so did those who went with it."""
    if entry.kind in _GOES_ON or entry.moment == "wall":
        return
    who, step = f"entry {fired.index}", fired.global_step if fired.at_step is None else fired.at_step
    if entry.moment in STARTING:
        if any(lines.events for rank, lines in case.run.logs(a.attempt).ranks.items() if rank in (fired.rank, *entry.others)):
            notes.broken(f"{who} fired at {entry.moment}, and attempt {a.attempt} did steps all the same")
        return
    inside = entry.moment in _INSIDE
    due = step - 1 if inside else step
    last = {rank: _last(case, a, rank) for rank in (fired.rank, *entry.others)}
    where = f"in step {step}" if inside else f"behind step {step}"
    late = inside and (entry.kind == "partition" or case.run.stored.config.precision == "fp16")  # whose update may be left out
    for rank, reached in last.items():
        ahead = rank != fired.rank and entry.moment in ("backward", "optimizer")  # past its last wait for the one that took it along
        if reached is not None and reached > due + max(late, ahead):
            notes.broken(f"{who} fired {where}, rank {rank} went on to step {reached}")
    reached = last[fired.rank]
    if reached is None and a.resumed_from_step != due:
        notes.missing(f"{who} fired in attempt {a.attempt} and rank {fired.rank} left no log")
    elif reached is not None and reached < due:
        notes.missing(f"{who} fired {where}, the log of rank {fired.rank} ends at step {reached}")


def _last(case: Case, a: Attempt, rank: int) -> int | None:
    lines = case.run.logs(a.attempt).ranks.get(rank)
    return lines.events[-1].global_step if lines and lines.events else None


def _check_slow_rank(case: Case, fired: InjectedFault, entry: PlannedFailure, notes: FindingBuilder) -> None:
    """Each of the steps that it lasts for took at least as long as the rank was held up, as far as the rank came."""
    lines = case.run.logs(fired.attempt).ranks.get(fired.rank)
    first = fired.global_step if fired.at_step is None else fired.at_step
    last = first if fired.at_step is None else entry.global_step + STRIKES["slow_rank"].lasts - 1
    took = {line.global_step: line.seconds for line in lines.events if first <= line.global_step <= last} if lines else {}
    if lines and first not in took and any(line.global_step > first for line in lines.events):
        notes.missing(f"entry {fired.index} held rank {fired.rank} up in step {first}, of which its log has no line")
    for step, seconds in took.items():
        if seconds < entry.seconds:
            notes.broken(f"entry {fired.index} held rank {fired.rank} up for {entry.seconds:g} s in step {step}, which took {seconds:.3f} s")


def _check_save(case: Case, a: Attempt, fired: InjectedFault, entry: PlannedFailure, notes: FindingBuilder) -> None:
    """What became of the save that was struck."""
    lines = [line for line in case.run.logs(a.attempt).checkpoints.events if line.global_step == fired.at_step]
    end = next((line for line in lines if line.event in CHECKPOINT_ENDS), None)
    who, save = f"entry {fired.index} ({entry.kind})", f"the save of step {fired.at_step} in attempt {a.attempt}"
    if end is None:
        notes.missing(f"{who}: {save} has no end on record")
    elif entry.kind == "slow_disk":
        _check_slow_disk(case, a, fired, entry, notes)
    elif entry.kind == "writer":
        before = POINTS.index(entry.point.partition(":")[0]) <= POINTS.index("after_root_sync")
        if before and end.event == "committed" and end.reason is None:
            notes.broken(f"{who}: {save} was committed by the writer that had been killed")
    elif not _failed_with(end, entry.kind.upper()) and not (end.event == "lost" and a.outcome != "completed"):
        notes.broken(f"{who}: {save} ended as {end.event} ({end.reason}), not as failed with {entry.kind.upper()}")


def _check_slow_disk(case: Case, a: Attempt, fired: InjectedFault, entry: PlannedFailure, notes: FindingBuilder) -> None:
    """Each committed save took at least the delays of its own calls: one write per file, and one sync where files are synced.

    The saves behind the first one only where rank 0 writes: a background writer that was replaced meanwhile is slow no more.
    """
    config = case.run.stored.config
    files = 6 if config.checkpoint.layout == "group" else 2
    least = entry.seconds * files * (2 if config.write_mode.sync_files else 1)
    lines = case.run.logs(a.attempt).checkpoints.events
    slow = sorted({line.global_step for line in lines if line.event == "submitted" and line.global_step >= (fired.at_step or 0)})
    for step in slow[: 1 if config.checkpoint.strategy in BACKGROUND else SLOW_SAVES]:
        end = next((line for line in lines if line.global_step == step and line.event in CHECKPOINT_ENDS), None)
        if end and end.event == "committed" and end.reason is None and end.write_s + end.commit_s < least:
            took = f"took {end.write_s + end.commit_s:.3f} s, its calls alone were held up for {least:g} s"
            notes.broken(f"entry {fired.index} (slow_disk): the save of step {step} in attempt {a.attempt} {took}")


def _failed_with(end: CheckpointLine, name: str) -> bool:
    return end.event == "failed" and name in (end.reason or "")


def _check_damage(case: Case, fired: InjectedFault, notes: FindingBuilder) -> None:
    """What was damaged was refused by the attempt that came next, for the file that was damaged."""
    damaged = fired.detail.partition(":")[0]
    after = [rejected for a in case.attempts if a.attempt >= fired.attempt for rejected in a.rejected]
    refused = [rejected for rejected in after if damaged == rejected.path or damaged.startswith(f"{rejected.path}/")]
    name = damaged.rpartition("/")[2]
    if not damaged:
        notes.missing(f"entry {fired.index} does not say what it damaged")
    elif not refused and case.attempt(fired.attempt):
        notes.broken(f"entry {fired.index} damaged {damaged}, and attempt {fired.attempt} did not refuse it")
    elif refused and not any(name in rejected.reason or rejected.layer == "hash" for rejected in refused):
        notes.broken(f"entry {fired.index} damaged {damaged}, which was refused for something else: {refused[0].layer}: {refused[0].reason}")
