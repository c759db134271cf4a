"""Checks what a fault must leave in the records: its attempt and target ended the way its kind ends
them, and the kind's own trace.
"""

from __future__ import annotations

from ecrl_cli.config.fault_spec import STARTING
from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.errors import shown
from ecrl_cli.failures.fault_kind import RecordedFault, Victim, how_it_ended, recorded_kind
from ecrl_cli.records.events import WRITERS_PER_ATTEMPT, Attempt, InjectedFault, PlannedFailure
from ecrl_cli.records.survivor_records import SURVIVED
from ecrl_cli.verify.verdict import FindingBuilder
from ecrl_cli.verify.verification_input import Case

_INSIDE = ("forward", "backward", "optimizer")
# between the claim of a failure, which is synced to the disk, and the failure itself
_CLAIMED_S = 1.0


def ends_attempt(entry: PlannedFailure, case: Case) -> bool:
    """Whether the fault ends the attempt that it is injected into."""
    return recorded_kind(entry.kind).ends_attempt(entry, case.run.stored.config)


def check_effect(
    case: Case, fired: InjectedFault, entry: PlannedFailure, notes: FindingBuilder
) -> None:
    """The fault ended its attempt: the right rank, the right way, at the right step; or the attempt
    survived and shows the fault's effect.
    """
    kind, a = recorded_kind(entry.kind), case.attempt(fired.attempt)
    if case.run.supervisor is None:
        notes.missing(
            f"entry {fired.index} fired in attempt {fired.attempt}: supervisor.json, which would"
            " say how that ended, is missing"
        )
        return
    # between two attempts: the next one may never have begun
    if a is None and entry.moment != "rest":
        notes.broken(
            f"entry {fired.index} fired in attempt {fired.attempt}, which supervisor.json does not"
            " know"
        )
        return
    explained = cut_short = False
    if a and ends_attempt(entry, case):
        final = case.run.logs(a.attempt).final
        if entry.moment == "wall" and final and final.at <= fired.at:
            # it fired after the final record was written, before the last process had exited
            return
        explaining = [f for f, e in _fatal(case, a, fired, entry) if _ended_by(case, a, f, e)]
        explained = bool(explaining)
        cut_short = any(f is not fired and abs(f.at - fired.at) <= _CLAIMED_S for f in explaining)
        if not kind.graceful:
            _check_end(case, a, fired, explained, cut_short, notes)
            _check_place(case, a, fired, entry, notes)
    for problem in kind.trace(RecordedFault(case.run, fired, entry, explained, cut_short)):
        (notes.broken if problem.proven else notes.missing)(problem.text)


def _check_end(
    case: Case,
    a: Attempt,
    fired: InjectedFault,
    explained: bool,
    cut_short: bool,
    notes: FindingBuilder,
) -> None:
    who = f"entry {fired.index}"
    if a.outcome in ("completed", "resized"):
        notes.broken(
            f"{who} fired in attempt {a.attempt}, which"
            f" {'completed' if a.outcome == 'completed' else 'ended well to be resized'}"
        )
    if a.outcome in ("died", "hung", SURVIVED) and not explained:
        notes.broken(
            f"{who} ({fired.kind} of rank {fired.rank}) is not how attempt {a.attempt} {a.outcome}:"
            f" {how_it_ended(a)}"
        )
    if a.outcome == "stopped" and not explained:
        _check_stopped(case, a, fired, notes)
    if a.outcome == "hung" and a.hang is None:
        notes.broken(f"{who}: attempt {a.attempt} hung, and no hang is on record")
    ends_supervisor = recorded_kind(fired.kind).supervisor_exit is not None
    if (
        ends_supervisor
        and case.completed
        and not cut_short
        and not any(later.session > a.session for later in case.attempts)
    ):
        notes.broken(f"{who} ({fired.kind}) ended the supervisor session, and no other followed")


def _check_stopped(case: Case, a: Attempt, fired: InjectedFault, notes: FindingBuilder) -> None:
    """An attempt stopped before its death was noticed was stopped by a signal, and was the last of
    its session.
    """
    who, session, following = (
        f"entry {fired.index} ({fired.kind})",
        case.run.session_of(a),
        case.attempt(a.attempt + 1),
    )
    if following and following.session == a.session:
        notes.broken(
            f"{who} fired in attempt {a.attempt}, which is said to have been stopped, and the same"
            f" session went on with attempt {following.attempt}"
        )
    elif session and session.signals == ():
        notes.broken(
            f"{who} fired in attempt {a.attempt}, which is said to have been stopped, and its"
            " session received no signal"
        )


def check_writer_deaths(case: Case, notes: FindingBuilder) -> None:
    """In each session at least as many background writers died as the plan killed, at most as many
    as were started; none without a writer.
    """
    sessions = {a.attempt: a.session for a in case.attempts}
    background = strategy_of(case.run.stored.config).needs_writer
    killed = [
        sessions.get(fired.attempt)
        for fired in case.run.fired
        if background and recorded_kind(fired.kind).victim is Victim.WRITER
    ]
    for number, session in enumerate(case.run.sessions):
        started = WRITERS_PER_ATTEMPT * list(sessions.values()).count(number) if background else 0
        if session.writer_deaths is None:  # recorded by an earlier version
            continue
        if session.writer_deaths < killed.count(number):
            notes.broken(
                f"{killed.count(number)} background writers were killed by the plan in session"
                f" {number}, {session.writer_deaths} died"
            )
        if not 0 <= session.writer_deaths <= started:
            notes.broken(
                f"{shown(session.writer_deaths)} background writers are said to have died in"
                f" session {number}, at most {started} were started"
            )


def _fatal(
    case: Case, a: Attempt, fired: InjectedFault, entry: PlannedFailure
) -> list[tuple[InjectedFault, PlannedFailure]]:
    """All faults that were to end `a`, except stop requests: of several at the same instant, any
    may be noticed first.
    """
    planned = {each.index: each for each in case.run.plan or ()}
    others = [
        (f, planned[f.index])
        for f in case.run.fired
        if f.attempt == a.attempt and f.index in planned and f is not fired
    ]
    all_of_them = [(fired, entry), *(pair for pair in others if ends_attempt(pair[1], case))]
    return [pair for pair in all_of_them if not recorded_kind(pair[1].kind).graceful]


def _ended_by(case: Case, a: Attempt, fired: InjectedFault, entry: PlannedFailure) -> bool:
    """Whether `a` ended the way this fault ends one. The way is unknown if the supervisor was
    killed first.
    """
    end, kind = (a.exit_code, a.signal), recorded_kind(entry.kind)
    if end == (None, None) and a.outcome == "died":
        session = case.run.session_of(a)
        return session is None or session.ended_at is None
    if a.outcome == "hung" or kind.hangs:
        named = a.hang.ranks if a.hang else ()
        blamed = not named or kind.stalls_exchange or bool({fired.rank, *entry.others} & set(named))
        return kind.hangs and ((a.outcome == "hung" and blamed) or end == (1, None))
    # of ranks that exit with errors, a survivor may be noticed before the target
    peers = end == (1, None)
    return end == kind.death and (peers or a.rank in (fired.rank, *entry.others, None))


def _check_place(
    case: Case, a: Attempt, fired: InjectedFault, entry: PlannedFailure, notes: FindingBuilder
) -> None:
    """The target rank, and the ranks that fail with it, got as far as the moment says and no
    further.
    """
    if entry.moment == "wall":
        return
    who, step = (
        f"entry {fired.index}",
        (fired.global_step if fired.at_step is None else fired.at_step),
    )
    if entry.moment in STARTING:
        if any(
            lines.events
            for rank, lines in case.run.logs(a.attempt).ranks.items()
            if rank in (fired.rank, *entry.others)
        ):
            notes.broken(
                f"{who} fired at {entry.moment}, and attempt {a.attempt} did steps all the same"
            )
        return
    inside = entry.moment in _INSIDE
    due = step - 1 if inside else step
    last = {rank: _last(case, a, rank) for rank in (fired.rank, *entry.others)}
    where = f"in step {step}" if inside else f"after step {step}"
    # its update may be skipped
    late = inside and (
        recorded_kind(entry.kind).stalls_exchange or case.run.stored.config.precision == "fp16"
    )
    for rank, reached in last.items():
        # past its last wait for the rank that took it down
        ahead = rank != fired.rank and entry.moment in ("backward", "optimizer")
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
