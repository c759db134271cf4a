"""Cross-checks two independent clocks: every instant is recorded by the monotonic clock (`at`) and
the wall clock (`time`), which must advance together.

Also checked is what the monotonic clock alone rules out: instants out of order, outside of their
session or attempt, or closer together than the work between them took. See
docs/decisions/cross-checks.md for the tolerances and for what no record can contradict.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise, zip_longest

from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.records.columns import rank_columns
from ecrl_cli.records.events import Attempt, InjectedFault, RankLine, SupervisorSession
from ecrl_cli.records.journal import Log
from ecrl_cli.records.state_digests import recorded_by_rank
from ecrl_cli.verify.clock_readings import EARLIEST, ClockReadings, Instant, LineReadings
from ecrl_cli.verify.disturbance import ENDED_WELL
from ecrl_cli.verify.journal_instants import (
    TRAINING_THREAD,
    check_journal_instants,
    named,
    session_of_line,
    writable_until,
)
from ecrl_cli.verify.line_columns import instants_after, one_after_another
from ecrl_cli.verify.rank_spans import APART_S, ROUNDING_S
from ecrl_cli.verify.verdict import FindingBuilder
from ecrl_cli.verify.verification_input import Case

# the highest rate at which a daemon slews a wall clock (chrony: 8.3%; the kernel's own slew: 0.05%)
SLEW = 0.1
# how often the wall clock may be set, or the machine suspended, in one run
STEPS, STEP_EVERY_S = 3, 600.0
# how many instants, and what share, may have had their second clock read late because the process
# was paused in between
LATE, LATE_SHARE = 2, 0.02
# a clock wrong by this much is corrected once; it does not become wrong again
LARGE_STEP_S = 3600.0
COMPARED_RECORDS = 16  # how many records before the end of a session are compared with it
# how many instants on either side of one are looked through for those to compare it with
_LOOKED_AT = 64


def local_ranks(case: Case, attempt: int) -> int:
    """How many ranks of `attempt`, the first ones, run on the supervisor's machine and share its
    clocks.
    """
    order, a = case.run.logs(attempt).order, case.attempt(attempt)
    ranks = order.world_size if order else a.world_size if a else 0
    return ranks // max(1, len(order.nodes)) if order else ranks


def check_clocks(case: Case, notes: FindingBuilder) -> None:
    """Run all checks on instants."""
    _check_sessions(case, notes)
    for a in case.attempts:
        _check_attempt_instants(case, a, notes)
        _check_line_order(case, a, notes)
        check_journal_instants(case, a, notes)
    _check_starts(case, notes)
    by_clock = _by_clock(case)
    _check_ends(case, by_clock, notes)
    _check_fired(case, notes)
    for clock, readings in sorted(by_clock.items()):
        if not readings.agree(SLEW):
            _check_agreement(clock, readings.instants(), notes)


def _check_sessions(case: Case, notes: FindingBuilder) -> None:
    """Sessions follow one another, have positive length, and contain their attempts."""
    sessions = case.run.sessions
    for number, session in enumerate(sessions):
        if session.ended_at is not None and session.ended_at <= session.started_at:
            notes.broken(
                f"session {number} began at {session.started_at:.3f} s and ended at"
                f" {session.ended_at:.3f} s"
            )
        held = [a for a in case.attempts if a.session == number]
        for a in held:
            if a.launched_at < session.started_at - ROUNDING_S:
                notes.broken(
                    f"attempt {a.attempt} was launched {session.started_at - a.launched_at:.3f} s"
                    " before its session began"
                )
            over = a.launched_at if a.ended_at is None else a.ended_at
            if session.ended_at is not None and over > session.ended_at + ROUNDING_S:
                notes.broken(
                    f"attempt {a.attempt} ended {over - session.ended_at:.3f} s after its session"
                )
    for number, (before, after) in enumerate(pairwise(sessions)):
        last = before.started_at if before.ended_at is None else before.ended_at
        if before.boot_id == after.boot_id and after.started_at < last - ROUNDING_S:
            notes.broken(
                f"session {number + 1} began {last - after.started_at:.3f} s before session"
                f" {number} was over"
            )
        _check_reboot(number, before, after, notes)


def _check_starts(case: Case, notes: FindingBuilder) -> None:
    """The time from a session's start to its first launch is recorded only by these two clocks:
    they must agree on it.

    If the wall clock was set, or the machine suspended, in that interval, the wall time of the run
    is unknown.
    """
    for number, session in enumerate(case.run.sessions):
        first = next(
            (
                order
                for a in case.attempts
                if a.session == number and (order := case.run.logs(a.attempt).order)
            ),
            None,
        )
        if first is None or not first.at or first.boot_id != session.boot_id:
            continue
        took, by_wall = first.at - session.started_at, first.time - session.time
        if abs(took - by_wall) > APART_S + SLEW * max(took, 0.0):
            notes.missing(
                f"session {number} took {took:.3f} s to its first launch by the monotonic clock,"
                f" {by_wall:.3f} s by the wall clock: how long the run took is not known"
            )


def _check_ends(case: Case, by_clock: Mapping[str, ClockReadings], notes: FindingBuilder) -> None:
    """The end of a session is recorded by both clocks: they must agree on the time since one of the
    last records before it.

    The supervisor reads both within a millisecond, shortly after these records: if the wall clock
    was set, or the machine suspended, in between, the wall time of the run is unknown. One agreeing
    record is enough: the second clock of others may have been read late by a paused process.
    """
    for number, session in enumerate(case.run.sessions):
        if session.ended_at is None or session.ended_time is None:
            continue
        readings = by_clock.get(f"boot {session.boot_id[:8]}", ClockReadings())
        latest = readings.last_before(session.ended_at, COMPARED_RECORDS)
        if not latest:
            continue
        spans = [(session.ended_at - each.at, session.ended_time - each.time) for each in latest]
        took, by_wall = spans[-1]
        last = latest[-1]
        if all(abs(a - b) > APART_S + SLEW * a for a, b in spans):
            notes.missing(
                f"session {number} ended {took:.3f} s after {last.what} by the monotonic clock,"
                f" {by_wall:.3f} s by the wall clock: how long the run took is not known"
            )


def _check_reboot(
    number: int, before: SupervisorSession, after: SupervisorSession, notes: FindingBuilder
) -> None:
    """Two boots do not begin in the same millisecond; boots are distinguished by id and by the wall
    time at which their clock began.
    """
    offsets = before.time - before.started_at, after.time - after.started_at
    if before.boot_id != after.boot_id and abs(offsets[0] - offsets[1]) < 1e-3:
        notes.broken(
            f"sessions {number} and {number + 1} name two boots, and their clocks began at the same"
            " instant"
        )


def _check_attempt_instants(case: Case, a: Attempt, notes: FindingBuilder) -> None:
    """Attempts of a session follow one another; what an attempt's ranks recorded lies between its
    launch and the next one's.
    """
    if a.ended_at is not None and a.ended_at < a.launched_at - ROUNDING_S:
        notes.broken(
            f"attempt {a.attempt} ended {a.launched_at - a.ended_at:.3f} s before it was launched"
        )
    following = _next_in_session(case, a)
    if following and a.ended_at is not None and following.launched_at < a.ended_at - ROUNDING_S:
        notes.broken(
            f"attempt {following.attempt} was launched {a.ended_at - following.launched_at:.3f} s"
            f" before attempt {a.attempt} ended"
        )
    _check_order(case, a, notes)
    until = _until(case, a)
    latest = float("inf") if until is None else until + ROUNDING_S
    for instant in _instants_outside(case, a, a.launched_at - ROUNDING_S, latest):
        if instant.at < a.launched_at - ROUNDING_S:
            notes.broken(
                f"{instant.what} is dated {a.launched_at - instant.at:.3f} s before the attempt was"
                " launched"
            )
            break
        if until is not None and instant.at > until + ROUNDING_S:
            notes.broken(
                f"{instant.what} is dated {instant.at - until:.3f} s after the attempt was over"
            )
            break


def _check_order(case: Case, a: Attempt, notes: FindingBuilder) -> None:
    """launch.json is written after the end of the previous attempt and before the launch, in the
    boot of its session.
    """
    order, session = case.run.logs(a.attempt).order, case.run.session_of(a)
    if order is None or not order.at:
        if order and recorded_by_rank(case.run.stored.config):  # earlier versions did not say
            notes.broken(f"launch.json of attempt {a.attempt} does not say when it was written")
        return
    earlier = case.attempt(a.attempt - 1)
    before = earlier if earlier and earlier.session == a.session else None
    if order.at > a.launched_at + ROUNDING_S:
        notes.broken(
            f"launch.json of attempt {a.attempt} was written {order.at - a.launched_at:.3f} s after"
            " the launch"
        )
    if order.launched_at and {a.launched_at, order.at} != {order.launched_at}:
        notes.broken(
            f"attempt {a.attempt} was launched at {order.launched_at:.6f} by launch.json, which was"
            f" written at {order.at:.6f}, and at {a.launched_at:.6f} by supervisor.json"
        )
    if before and before.ended_at is not None and order.at < before.ended_at - ROUNDING_S:
        notes.broken(
            f"launch.json of attempt {a.attempt} was written {before.ended_at - order.at:.3f} s"
            f" before attempt {before.attempt} ended"
        )
    if session:
        if session.boot_id != order.boot_id:
            notes.broken(
                f"attempt {a.attempt} was ordered in boot {order.boot_id[:8]}, its session is of"
                f" boot {session.boot_id[:8]}"
            )
        elif order.at < session.started_at - ROUNDING_S:
            notes.broken(f"launch.json of attempt {a.attempt} was written before its session began")


def _next_in_session(case: Case, a: Attempt) -> Attempt | None:
    following = case.attempt(a.attempt + 1)
    return following if following and following.session == a.session else None


def _until(case: Case, a: Attempt) -> float | None:
    """When every rank of `a` had ended or left it: the next launch, else the end of the session;
    None if the supervisor was killed.
    """
    if following := _next_in_session(case, a):
        return following.launched_at
    session = case.run.session_of(a)
    return session.ended_at if session else None


def processes_over(case: Case, a: Attempt) -> float | None:
    """Like `_until`, or the recorded end of an attempt that ended well: by then its processes had
    ended.
    """
    return a.ended_at if a.outcome in ENDED_WELL and a.ended_at is not None else _until(case, a)


def _instants_outside(case: Case, a: Attempt, earliest: float, latest: float) -> Iterator[Instant]:
    """The instants of `_of_ranks` one by one, without those of ranks whose lines all lie in
    between.
    """
    for part in _of_ranks(case, a):
        if isinstance(part, Instant):
            yield part
        elif (part.columns.at < earliest).any() or (part.columns.at > latest).any():
            yield from part.instants()


def _of_lines(
    a: Attempt, rank: int, lines: Log[RankLine], until: float = float("inf"), *, loose: bool
) -> Iterator[Instant | LineReadings]:
    who, columns = f"attempt {a.attempt} rank {rank}", rank_columns(lines)
    if columns is not None:
        yield LineReadings(columns, (a.attempt, rank), who, until, loose)
        return
    for line in lines.events:
        what = f"step {line.global_step} of {who}"
        yield Instant(line.at, line.time, (a.attempt, rank), what, until, loose)


def _of_ranks(case: Case, a: Attempt) -> Iterator[Instant | LineReadings]:
    """The instants recorded in `a` by ranks that share the supervisor's clock."""
    logs, who = case.run.logs(a.attempt), f"attempt {a.attempt}"
    for rank, lines in sorted(logs.ranks.items()):
        if rank < local_ranks(case, a.attempt):
            yield from _of_lines(a, rank, lines, loose=True)
    for saved, following in zip_longest(logs.checkpoints.events, logs.checkpoints.events[1:]):
        if saved.event in TRAINING_THREAD:
            in_file = following.at if following and following.at > saved.at else float("inf")
            yield Instant(saved.at, saved.time, (a.attempt, 0), named(saved), in_file)
    for found in logs.evaluations.events:
        yield Instant(
            found.at,
            found.time,
            (a.attempt, 0),
            f"the evaluation after step {found.global_step} of {who}",
        )
    for rank, reports in sorted(logs.survivor_reports.items()):
        for each in reports.events:
            yield Instant(
                each.at, each.time, (a.attempt, rank), f"the survivor report of {who} rank {rank}"
            )
    if logs.final:
        yield Instant(logs.final.at, logs.final.time, (a.attempt, 0), f"final.json of {who}")


def _check_line_order(case: Case, a: Attempt, notes: FindingBuilder) -> None:
    """A step takes `seconds` and ends at `at`: it cannot have begun before the previous one
    ended.
    """
    for rank, lines in sorted(case.run.logs(a.attempt).ranks.items()):
        who = f"attempt {a.attempt} rank {rank}"
        before = a.launched_at if rank < local_ranks(case, a.attempt) else None
        columns = rank_columns(lines)
        if columns is not None and one_after_another(columns, before):
            continue
        for line in lines.events:
            if line.seconds <= 0:
                notes.broken(f"step {line.global_step} of {who} took {line.seconds:g} s")
                break
            if before is not None and line.at - line.seconds < before - ROUNDING_S:
                early = before - (line.at - line.seconds)
                notes.broken(
                    f"step {line.global_step} of {who} began {early:.6f} s before what came before"
                    f" it was over, by its own {line.seconds:.6f} s"
                )
                break
            before = line.at


def _check_fired(case: Case, notes: FindingBuilder) -> None:
    """Planned faults fired only while a supervisor was running."""
    sessions = case.run.sessions
    for fired in case.run.fired:
        remote = fired.rank >= local_ranks(case, fired.attempt) > 0
        if (
            sessions
            and not remote
            and not any(_within(number, sessions, fired.at) for number in range(len(sessions)))
        ):
            notes.broken(
                f"entry {fired.index} fired at {fired.at:.3f} s, when no supervisor was there"
            )


def _within(number: int, sessions: tuple[SupervisorSession, ...], at: float) -> bool:
    """Whether `at` may lie in a session; a killed session lasts at most until the next one of its
    boot.
    """
    session, rest = sessions[number], sessions[number + 1 :]
    if session.ended_at is not None:
        end = session.ended_at
    else:
        end = next(
            (later.started_at for later in rest if later.boot_id == session.boot_id), float("inf")
        )
    return session.started_at - ROUNDING_S <= at <= end + ROUNDING_S


def _by_clock(case: Case) -> dict[str, ClockReadings]:
    """Every instant of the run by its clock: a boot of the supervisor's machine, or a rank's
    process on another machine.
    """
    found: dict[str, list[Instant | LineReadings]] = {}
    for number, session in enumerate(case.run.sessions):
        begun = Instant(session.started_at, session.time, (-1, "supervisor"), f"session {number}")
        found.setdefault(f"boot {session.boot_id[:8]}", []).append(begun)
        if session.ended_at is not None and session.ended_time is not None:
            ended = Instant(
                session.ended_at,
                session.ended_time,
                (-1, "supervisor"),
                f"the end of session {number}",
                session.ended_at,
            )
            found[f"boot {session.boot_id[:8]}"].append(ended)
    for a in case.attempts:
        own = case.run.session_of(a)
        boot = f"boot {own.boot_id[:8]}" if own else f"session {a.session}"
        logs, order = case.run.logs(a.attempt), case.run.logs(a.attempt).order
        over = processes_over(case, a)
        until = float("inf") if over is None else over
        found.setdefault(boot, []).extend(
            replace(each, until=min(until, each.until)) for each in _of_ranks(case, a)
        )
        if order and order.at:
            found[boot].append(
                Instant(
                    order.at,
                    order.time,
                    (-1, "supervisor"),
                    f"launch.json of attempt {a.attempt}",
                    a.launched_at,
                )
            )
        for line, following in zip_longest(logs.checkpoints.events, logs.checkpoints.events[1:]):
            if line.event not in TRAINING_THREAD:
                there, before = session_of_line(case, a, line), writable_until(case, a, line)
                if following and following.at > line.at:
                    before = min(before, following.at)  # it was in the file by then
                read = Instant(line.at, line.time, (a.attempt, named(line)), named(line), before)
                found.setdefault(
                    boot if there is None else f"boot {case.run.sessions[there].boot_id[:8]}", []
                ).append(read)
        for fired in (
            f
            for f in case.run.fired
            if f.attempt == a.attempt and f.rank < local_ranks(case, a.attempt)
        ):
            found[boot].append(_of_fault(case, a, fired, until))
        for rank, lines in logs.ranks.items():
            if rank >= local_ranks(case, a.attempt):
                name = f"attempt {a.attempt} rank {rank}"
                found[name] = list(_of_lines(a, rank, lines, loose=False))
    return {clock: ClockReadings(parts) for clock, parts in found.items()}


def _of_fault(case: Case, a: Attempt, fired: InjectedFault, until: float) -> Instant:
    """The instant of a fired fault. Its record is on disk before the fault is injected, thus before
    its target's next line.
    """
    lines = case.run.logs(a.attempt).ranks.get(fired.rank)
    following = next(iter(instants_after(lines, fired.at)), until) if lines else until
    background = strategy_of(case.run.stored.config).background  # a writer is hit beside the ranks
    return Instant(
        fired.at,
        fired.time,
        (a.attempt, f"fault {fired.index}"),
        f"entry {fired.index}, fired,",
        until if background else min(until, following),
    )


def _check_agreement(clock: str, instants: list[Instant], notes: FindingBuilder) -> None:
    """The wall clock may be slewed, set occasionally, and read late; it may not run at another
    rate, or be set back and forth.
    """
    if early := next((each for each in instants if each.time < EARLIEST), None):
        notes.missing(
            f"{early.what} is dated {early.time:.0f} s after 1970 by the wall clock, which had not"
            " been set"
        )
    ordered = sorted(instants, key=lambda each: (each.at, each.time))
    steps, late, impossible = _disagreements(ordered)
    for each, apart in impossible[:1]:
        how = (
            f"{apart:.3f} s late, its process had gone on or was over by then"
            if apart > 0
            else f"{-apart:.3f} s early, which no clock showed"
        )
        notes.broken(f"{clock}: {each.what} has a wall time {how} ({len(impossible)} such)")
    allowed = STEPS + int((ordered[-1].at - ordered[0].at) / STEP_EVERY_S)
    large = [step for step in steps if abs(step[1]) > LARGE_STEP_S]
    if len(steps) > allowed or (any(by > 0 for _, by in large) and any(by < 0 for _, by in large)):
        where, by = (large or steps)[0]
        text = (
            f"{clock}: the wall clock and the monotonic one part {len(steps)} times in"
            f" {ordered[-1].at - ordered[0].at:.3f} s"
        )
        notes.broken(f"{text}, the first time at {where.what}, by {by:+.3f} s")
    elif len(late) > LATE + LATE_SHARE * len(ordered):
        notes.broken(
            f"{clock}: {len(late)} of {len(ordered)} instants have a wall time that was read late,"
            f" the first is {late[0].what}"
        )


def _disagreements(
    ordered: list[Instant],
) -> tuple[list[tuple[Instant, float]], list[Instant], list[tuple[Instant, float]]]:
    """(instants at which the wall clock was set, and by how much), instants whose wall time was
    read late, and (instants whose wall time their process cannot have read, and by how much:
    negative if no process can have).

    Greedy: an instant agrees with those since the last step of the clock, or was read late by a
    paused process, or is a new step.
    """
    steps: list[tuple[Instant, float]] = []
    late: list[Instant] = []
    impossible: list[tuple[Instant, float]] = []
    free_until = _next_of_process(ordered)
    tight = [number for number, each in enumerate(ordered) if not each.loose]
    base: Instant | None = None
    for number, each in enumerate(ordered):
        if base is None:
            base = each
            continue
        alone = _alone(ordered, tight, number)
        apart = alone or each.offset - base.offset
        if not alone and abs(apart) <= APART_S + SLEW * (each.at - base.at):
            continue
        if (
            apart > 0
            and each.at + apart <= free_until[number] + APART_S
            and (alone or _returns(ordered, number, base))
        ):
            late.append(each)
        elif alone or (apart > 0 and number + 1 < len(ordered) and _returns(ordered, number, base)):
            impossible.append((each, apart))
        else:
            steps.append((each, apart))
            base = each
    return steps, late, impossible


def _alone(ordered: list[Instant], tight: list[int], number: int) -> float:
    """By how much the instant is apart from those beside it, if these agree with one another; 0 if
    it is not.

    The clock is not set for one reading and set right again. Those beside it are the nearest whose
    readings are close to one another; a loose one may itself be late, which is judged otherwise,
    but not early. `tight`: the places of those that are not loose.
    """
    each, first, last = ordered[number], bisect_left(tight, number), bisect_right(tight, number)
    before = [
        ordered[place] for place in tight[max(0, first - 2) : first] if place >= number - _LOOKED_AT
    ]
    behind = [ordered[place] for place in tight[last : last + 2] if place <= number + _LOOKED_AT]
    if not before or not behind or behind[-1].at - before[0].at > STEP_EVERY_S:
        return 0.0
    beside = [*before, *behind]
    apart = [each.offset - other.offset for other in beside]
    if any(_close(each, other) or not _close(beside[0], other) for other in beside) or min(
        apart
    ) < 0 < max(apart):
        return 0.0
    nearest = min(apart, key=abs)
    return 0.0 if each.loose and nearest > 0 else nearest


def _close(one: Instant, other: Instant) -> bool:
    return abs(one.offset - other.offset) <= APART_S + SLEW * abs(one.at - other.at)


def _next_of_process(ordered: list[Instant]) -> list[float]:
    """For each instant, when its process read the clocks again or was over: until then it may have
    been paused.
    """
    following: dict[tuple[int, int | str], float] = {}
    found = []
    for each in reversed(ordered):
        found.append(min(following.get(each.process, each.until), each.until))
        following[each.process] = each.at
    return list(reversed(found))


def _returns(ordered: list[Instant], number: int, base: Instant) -> bool:
    """Whether the instant after `number` agrees with those before, so that the clock itself was not
    set. True at the end.
    """
    behind = ordered[number + 1 : number + 2]
    return all(_close(each, base) for each in behind)
