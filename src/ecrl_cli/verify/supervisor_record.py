"""Checks supervisor.json against itself and the logs: ends of attempts and sessions, hangs,
phases.
"""

from __future__ import annotations

import re
import signal
from itertools import pairwise

from ecrl_cli.checkpoint.format.canonical_json import is_digest
from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.errors import plural, shown
from ecrl_cli.failures.fault_kind import recorded_kind
from ecrl_cli.history.lineage import furthest, lines_of_step
from ecrl_cli.history.timeline import phases
from ecrl_cli.records.events import (
    TARGET_REACHED,
    Attempt,
    Hang,
    SkippedSnapshot,
    Straggler,
    SupervisorRecord,
)
from ecrl_cli.records.state_digests import recorded_by_rank
from ecrl_cli.records.survivor_records import SNAPSHOT, SURVIVED
from ecrl_cli.supervision.attempts.restart_policy import charged_attempts, restarts
from ecrl_cli.supervision.watch.hang_detector import (
    FACTOR,
    FLOOR_S,
    HangTimeouts,
    named_ranks,
    place_of,
)
from ecrl_cli.verify.clocks import local_ranks
from ecrl_cli.verify.continuation import continued
from ecrl_cli.verify.metrics_cache import lacking
from ecrl_cli.verify.rank_spans import ROUNDING_S
from ecrl_cli.verify.verdict import FindingBuilder
from ecrl_cli.verify.verification_input import Case

_STOP_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
_PHASE_S = 1e-6  # a phase is a sum of recorded differences


def check_supervisor_record(case: Case, record: SupervisorRecord, notes: FindingBuilder) -> None:
    """Check the whole record."""
    _check_end(case, record, notes)
    _check_sessions(case, record, notes)
    _check_signals(record, notes)
    _check_budget(case, record, notes)
    for before, after in pairwise(record.attempts):
        if after.session < before.session:
            notes.broken(
                f"attempt {after.attempt} is of session {after.session}, attempt {before.attempt}"
                f" of session {before.session}"
            )
        if after.session == before.session and before.outcome in ("stopped", "running"):
            how = "was stopped" if before.outcome == "stopped" else "is still running"
            notes.broken(
                f"attempt {before.attempt} {how}, and attempt {after.attempt} follows it in the"
                " same session"
            )
    for a in record.attempts:
        _check_exit(case, a, notes)
        _check_hang(case, a, notes)
        _check_stragglers(case, a, notes)
        for each in a.forgone:
            _check_forgone(case, a, each, notes)
    _check_phases(case, record, notes)


def _check_end(case: Case, record: SupervisorRecord, notes: FindingBuilder) -> None:
    """The terminal status is written with the end of the last session, and matches the outcome of
    the last attempt.
    """
    status, last = record.terminal_status, record.attempts[-1] if record.attempts else None
    if record.sessions and (record.sessions[-1].ended_at is None) != (status == "running"):
        how = "has no end" if record.sessions[-1].ended_at is None else "has ended"
        notes.broken(f"the run is {status}, and its last session {how}")
    if status == "completed" and record.reason != TARGET_REACHED:
        notes.broken("the run is completed, and the reason on record is another one than that")
    if (
        status not in ("completed", "running")
        and last
        and last.outcome == "completed"
        and not continued(case, last)
    ):
        notes.broken(f"the last attempt completed, and the run {status}")
    if status in ("gave_up", "refused") and last and last.outcome == "stopped":
        notes.broken(f"the last attempt was stopped, and the run {status}")


def _check_sessions(case: Case, record: SupervisorRecord, notes: FindingBuilder) -> None:
    """A session says which code ran; and one that came to its end says when by the wall clock,
    which signals it received and which writers died.
    """
    if not recorded_by_rank(case.run.stored.config):
        return  # earlier versions did not say
    for number, session in enumerate(record.sessions):
        if not is_digest(session.code):
            notes.broken(
                f"session {number} ran the code {shown(session.code)}, which is no SHA-256"
            )
        absent = [
            name
            for name in ("ended_time", "signals", "writer_deaths")
            if getattr(session, name) is None
        ]
        if session.ended_at is not None and absent:
            notes.broken(f"session {number} came to its end, and does not say its {absent[0]}")
        if session.ended_at is None and len(absent) < 3:
            notes.broken(f"session {number} has no end, and says what is only known then")


def _check_signals(record: SupervisorRecord, notes: FindingBuilder) -> None:
    """Stop signals and stopped attempts explain each other: a session that stopped an attempt
    received one, and the reason names it.
    """
    for number, session in enumerate(record.sessions):
        if session.signals is None:
            continue
        if unknown := [each for each in session.signals if each not in _STOP_SIGNALS]:
            notes.broken(f"session {number} received signal {unknown[0]}, which stops no run")
        stopped = [
            a.attempt for a in record.attempts if a.session == number and a.outcome == "stopped"
        ]
        if stopped and not session.signals:
            notes.broken(f"attempt {stopped[0]} was stopped, and its session received no signal")
    last = record.sessions[-1] if record.sessions else None
    if record.terminal_status == "stopped" and last and last.signals:
        names = [signal.Signals(each).name for each in last.signals if each in _STOP_SIGNALS]
        if not any(name in record.reason for name in names):
            notes.broken(
                "the run was stopped, its last session received"
                f" {', '.join(names) or 'no stop signal'}, and the reason names none of them"
            )


def _check_budget(case: Case, record: SupervisorRecord, notes: FindingBuilder) -> None:
    """No supervisor restarts a run more often than allowed."""
    spent, most = (
        restarts(charged_attempts(record.attempts, record.sessions)),
        case.run.stored.config.supervision.max_restarts,
    )
    if spent > most:
        notes.broken(
            f"supervisor.json has {plural(spent, 'restart')} since the run was last started,"
            f" supervision.max_restarts is {most}"
        )


def _check_exit(case: Case, a: Attempt, notes: FindingBuilder) -> None:
    """An attempt has an exit code or a signal, of an existing rank, that fits its outcome."""
    who, code, session = f"attempt {a.attempt}", a.exit_code, case.run.session_of(a)
    if code is not None and a.signal is not None:
        notes.broken(f"{who} has both exit code {code} and signal {a.signal}")
    if a.signal is not None and not 0 < a.signal < 65:
        notes.broken(f"{who} ended by signal {a.signal}, which there is none of")
    if a.rank is not None and (not 0 <= a.rank < a.world_size or (code == 0 and a.signal is None)):
        notes.broken(
            f"{who} of {plural(a.world_size, 'rank')} names rank {a.rank} as the one that ended it,"
            f" with exit code {code}"
        )
    if a.outcome in ("stopped", "hung", SURVIVED) and code == 0:
        notes.broken(
            f"{who} {a.outcome} and has exit code 0, which only ranks have that came to their end"
            " by themselves"
        )
    if a.outcome == "resized" and (code, a.signal) != (0, None):
        notes.broken(f"{who} ended well to be resized, with exit code {code} and signal {a.signal}")
    if a.outcome == "completed":
        _check_completed(case, a, notes)
    if a.rank is not None and (code, a.signal) == (None, None):
        notes.broken(
            f"{who} names rank {a.rank} as the one that ended it, and neither an exit code nor a"
            " signal"
        )
    if (
        a.outcome == "died"
        and (code, a.signal) == (None, None)
        and a.ended_at is not None
        and session
        and session.ended_at is None
    ):
        notes.broken(f"{who} died, its supervisor did not live to see how, and says when")
    if a.outcome == "died" and (code, a.signal, a.rank) == (None, None, None):
        killed = session is not None and session.ended_at is None
        if not killed:
            notes.broken(f"{who} died, nothing says of what, and its supervisor lived to see it")
    if a.ended_at is None and a.outcome != "running" and session and session.ended_at is not None:
        notes.broken(f"{who} {a.outcome} and has no end, and its supervisor lived to see it")


def _check_completed(case: Case, a: Attempt, notes: FindingBuilder) -> None:
    """A rank may end badly after the target is reached; the record is credible only if a planned
    fault explains it. A supervisor that was asked to stop ends a launcher that stands.
    """
    session, silent = case.run.session_of(a), a.signal is None and a.hang is None
    seen = session is not None and session.ended_at is not None and not session.signals
    if silent and a.exit_code is None and seen:
        notes.broken(
            f"attempt {a.attempt} completed, its supervisor lived to see it, and no exit code is on"
            " record"
        )
    if silent and a.exit_code in (0, None):
        return
    final = case.run.logs(a.attempt).final
    late = [
        f
        for f in case.run.fired
        if f.attempt == a.attempt and final and f.at >= final.at - ROUNDING_S
    ]
    if not late:
        how = f"signal {a.signal}" if a.signal is not None else f"exit code {a.exit_code}"
        ended = "hung after that" if a.hang else f"rank {a.rank} ended with {how}"
        notes.missing(
            f"attempt {a.attempt} completed, and {ended}: nothing on record explains that"
        )


def _check_hang(case: Case, a: Attempt, notes: FindingBuilder) -> None:
    """An attempt that hung made no progress for as long as its hang record says, at its end."""
    who, hang = f"attempt {a.attempt}", a.hang
    if a.outcome == "hung" and hang is None:
        notes.broken(f"{who} hung, and nothing says how")
    if hang is None:
        return
    if a.outcome not in ("hung", "stopped", "completed"):
        notes.broken(f"{who} {a.outcome}, and has a hang on record")
    if hang.waited_s < hang.limit_s - ROUNDING_S or hang.limit_s <= 0:
        notes.broken(
            f"{who} was taken for hung after {hang.waited_s:.3f} s of silence, {hang.limit_s:.3f} s"
            " were allowed"
        )
    if not set(hang.ranks) <= set(range(a.world_size)):
        notes.broken(
            f"{who} of {plural(a.world_size, 'rank')} hung because of ranks {list(hang.ranks)}"
        )
    for text in hang_contradictions(case, a, hang):
        notes.broken(f"{who} {text}")
    if a.ended_at is None:
        return
    if hang.waited_s > a.ended_at - a.launched_at + ROUNDING_S:
        notes.broken(
            f"{who} was silent for {hang.waited_s:.3f} s and lasted for"
            f" {a.ended_at - a.launched_at:.3f} s"
        )
    for rank, lines in sorted(case.run.logs(a.attempt).ranks.items()):
        silent = (
            [line for line in lines.events if line.at > a.ended_at - hang.waited_s]
            if rank < local_ranks(case, a.attempt)
            else []
        )
        if len(silent) > 1:  # a rank may still write one line after its last heartbeat
            notes.broken(
                f"{who} hung: nothing moved in its last {hang.waited_s:.3f} s, in which rank {rank}"
                f" logged {plural(len(silent), 'step')}"
            )


def _check_stragglers(case: Case, a: Attempt, notes: FindingBuilder) -> None:
    for each in a.stragglers:
        for text in straggler_contradictions(case, a, each):
            notes.broken(
                f"attempt {a.attempt} has rank {each.rank} as a straggler in step"
                f" {each.global_step}, {text}"
            )
        inside = a.resumed_from_step < each.global_step <= (a.last_step or a.resumed_from_step) + 1
        if not (0 <= each.rank < a.world_size and each.own_s > each.others_s >= 0 and inside):
            text = (
                f"rank {each.rank} in step {each.global_step}, {each.own_s:.3f} s to the others'"
                f" {each.others_s:.3f} s"
            )
            notes.broken(f"attempt {a.attempt} has a straggler that cannot be: {text}")


def _check_forgone(case: Case, a: Attempt, each: SkippedSnapshot, notes: FindingBuilder) -> None:
    """A rejected snapshot had been taken: by an earlier attempt, of a step that it did, newer than
    the state resumed from.
    """
    who, config = (
        (
            f"attempt {a.attempt} refused a snapshot of step {each.global_step} of attempt"
            f" {each.attempt}"
        ),
        case.run.stored.config,
    )
    before = case.attempt(each.attempt)
    if not strategy_of(config).snapshots:
        notes.broken(f"{who}, its configuration takes none")
    elif before is None or each.attempt >= a.attempt or before.session != a.session:
        notes.broken(f"{who}, which was not before it under the same supervisor")
    elif not a.resumed_from_step < each.global_step <= furthest(case.run, each.attempt):
        notes.broken(
            f"{who}, which went on after step {a.resumed_from_step} and had come to step"
            f" {furthest(case.run, each.attempt)}"
        )
    elif (
        each.global_step % config.checkpoint.memory_every
        and each.global_step % config.checkpoint.every
    ):
        notes.broken(f"{who}, and none is due there")
    elif a.memory == SNAPSHOT and (a.continues or 0) > each.attempt:
        notes.broken(f"{who}, and went on with one of attempt {a.continues}")
    else:
        _check_taken(case, each, who, notes)


def _check_taken(case: Case, each: SkippedSnapshot, who: str, notes: FindingBuilder) -> None:
    """Rank 0 has a span of the snapshot, unless it died before closing it."""
    account = case.spans.of(each.attempt, 0)
    if account is None or account.spans[-1].global_step <= each.global_step:
        return
    if not any(
        span.category == "snapshot" and span.global_step == each.global_step
        for span in account.spans
    ):
        notes.broken(f"{who}, and rank 0 has booked none in that step")


def _check_phases(case: Case, record: SupervisorRecord, notes: FindingBuilder) -> None:
    """The phases in supervisor.json are those computed from the records; there may be none if the
    supervisor was killed and not restarted.
    """
    if case.run.unread or case.live or not record.sessions or record.sessions[-1].ended_at is None:
        return  # a supervisor that is still there writes them after its end
    folded, absent = phases(case.run, case.timeline), lacking(case)
    for a in record.attempts:
        expected = folded.get(a.attempt, {})
        if not a.phases and not recorded_by_rank(case.run.stored.config):
            continue
        for name in sorted(a.phases.keys() | expected.keys()):
            recorded, measured = a.phases.get(name, 0.0), expected.get(name, 0.0)
            if abs(recorded - measured) > _PHASE_S:
                text = (
                    f"attempt {a.attempt} took {recorded:.6f} s for {name} by supervisor.json,"
                    f" {measured:.6f} s by the records"
                )
                if absent:
                    notes.missing(f"{text} ({absent})")
                else:
                    notes.broken(text)
                return


_TEXT_S = 0.051  # the text rounds to a tenth of a second


def hang_contradictions(case: Case, a: Attempt, hang: Hang) -> list[str]:
    """Contradictions in a recorded hang: the ranks to blame, the limit and the text."""
    found, ranks = [], list(hang.ranks)
    if ranks != sorted(set(ranks)):
        found.append(f"names {ranks} as the ranks to blame")
    if text := _wrong_limit(case, a, hang):
        found.append(text)
    end = re.search(
        r"; nothing moved for ([0-9]+\.[0-9]) s \(limit ([0-9]+\.[0-9]) s\)\Z", hang.text
    )
    if (
        end is None
        or abs(float(end[1]) - hang.waited_s) > _TEXT_S
        or abs(float(end[2]) - hang.limit_s) > _TEXT_S
    ):
        found.append("says in words for how long nothing moved, which are not its numbers")
    if ranks and not hang.text.startswith(f"{named_ranks(hang.ranks)} "):
        found.append(f"does not say in words that {named_ranks(hang.ranks)} to blame")
    elif not ranks and re.match(r"ranks? [0-9]", hang.text):
        found.append("blames ranks in words, and names none")
    if (
        f" {place_of(hang.phase, hang.global_step)}" not in hang.text
        and "launcher" not in hang.text
    ):
        found.append(
            f"does not say in words that it was in {place_of(hang.phase, hang.global_step)}"
        )
    lines = [case.run.logs(a.attempt).ranks.get(rank) for rank in ranks if rank < a.world_size]
    last = [
        each.events[-1].global_step if each and each.events else a.resumed_from_step
        for each in lines
    ]
    if last and not min(last) <= hang.global_step <= max(last) + 1 and hang.global_step:
        found.append(
            f"says that ranks {ranks} stood still in step {hang.global_step}, their logs end at"
            f" step {max(last)}"
        )
    return found


def _wrong_limit(case: Case, a: Attempt, hang: Hang) -> str:
    """The limit is the start's, the configured one, or so many times a step: no longer than the
    longest that the lines have room for.
    """
    limits, gaps = HangTimeouts.of(case.run.stored.config.supervision), [0.0]
    for rank, lines in case.run.logs(a.attempt).ranks.items():
        if rank < local_ranks(case, a.attempt):
            gaps += [after.at - before.at for before, after in pairwise(lines.events)]
    # steps are timed from check to check
    longest = limits.factor * (max(gaps) + 2 * limits.check_every_s)
    known = (limits.timeout_s, max(limits.start_s, limits.timeout_s))
    if (
        any(abs(hang.limit_s - each) <= ROUNDING_S for each in known)
        or limits.timeout_s < hang.limit_s <= longest
    ):
        return ""
    return (
        f"was allowed {hang.limit_s:.3f} s of silence, the configuration says {limits.timeout_s:g}"
        f" s, for a start or a save {limits.start_s:g} s"
    )


def straggler_contradictions(case: Case, a: Attempt, each: Straggler) -> list[str]:
    """Contradictions in a straggler's seconds, by the lines of the step before and of the ranks
    that a fault held up in it.
    """
    found, before = [], each.global_step - 1
    took = {
        rank: line.seconds
        for rank, lines in case.run.logs(a.attempt).ranks.items()
        for line in lines_of_step(lines, before)
        if rank < a.world_size
    }
    if each.rank in took and each.own_s > took[each.rank] + ROUNDING_S:
        found.append(
            f"in which it had worked for {each.own_s:.6f} s, step {before} took it"
            f" {took[each.rank]:.6f} s"
        )
    others = [seconds for rank, seconds in took.items() if rank != each.rank]
    if others and each.others_s > max(others) + ROUNDING_S:
        found.append(
            f"to {each.others_s:.6f} s of the others, step {before} took them {max(others):.6f} s"
        )
    if each.own_s <= FACTOR * each.others_s + FLOOR_S:
        found.append(f"with {each.own_s:.6f} s to {each.others_s:.6f} s, which is not slow")
    held = _held_up(case, a, before)
    if each.rank in held and each.own_s < held[each.rank] - ROUNDING_S:
        found.append(
            f"with {each.own_s:.6f} s of work, a fault alone held it up for {held[each.rank]:g} s"
        )
    if a.world_size == 2 and (other := held.get(1 - each.rank, 0.0)) > each.others_s + ROUNDING_S:
        found.append(
            f"to {each.others_s:.6f} s of the other, which a fault held up for {other:g} s"
        )
    return found


def _held_up(case: Case, a: Attempt, step: int) -> dict[int, float]:
    """By rank, for how many seconds a planned fault held it up in `step`."""
    planned = {entry.index: entry for entry in case.run.plan or ()}
    return {
        fired.rank: planned[fired.index].seconds
        for fired in case.run.fired
        if fired.attempt == a.attempt
        and fired.index in planned
        and (lasts := recorded_kind(fired.kind).lasts) > 1
        and (fired.at_step or 0) <= step < planned[fired.index].global_step + lasts
    }
