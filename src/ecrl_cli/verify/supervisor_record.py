"""Checks supervisor.json against itself and the logs: ends of attempts and sessions, hangs, phases."""

from __future__ import annotations

import signal
from itertools import pairwise

from ecrl_cli.checkpoint.format.canonical_json import is_digest
from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.errors import plural, shown
from ecrl_cli.history.lineage import furthest
from ecrl_cli.history.timeline import phases
from ecrl_cli.records.events import TARGET_REACHED, Attempt, SkippedSnapshot, SupervisorRecord
from ecrl_cli.records.state_digests import recorded_by_rank
from ecrl_cli.records.survivor_records import SNAPSHOT, SURVIVED
from ecrl_cli.supervision.attempts.restart_policy import charged_attempts, restarts
from ecrl_cli.verify.clocks import local_ranks
from ecrl_cli.verify.lost_progress import hang_contradictions, straggler_contradictions
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
            notes.broken(f"attempt {after.attempt} is of session {after.session}, attempt {before.attempt} of session {before.session}")
        if after.session == before.session and before.outcome in ("stopped", "running"):
            how = "was stopped" if before.outcome == "stopped" else "is still running"
            notes.broken(f"attempt {before.attempt} {how}, and attempt {after.attempt} follows it in the same session")
    for a in record.attempts:
        _check_exit(case, a, notes)
        _check_hang(case, a, notes)
        _check_stragglers(case, a, notes)
        for each in a.forgone:
            _check_forgone(case, a, each, notes)
    _check_phases(case, record, notes)


def _check_end(case: Case, record: SupervisorRecord, notes: FindingBuilder) -> None:
    """The terminal status is written with the end of the last session, and matches the outcome of the last attempt."""
    status, last = record.terminal_status, record.attempts[-1] if record.attempts else None
    if record.sessions and (record.sessions[-1].ended_at is None) != (status == "running"):
        how = "has no end" if record.sessions[-1].ended_at is None else "has ended"
        notes.broken(f"the run is {status}, and its last session {how}")
    if status == "completed" and record.reason != TARGET_REACHED:
        notes.broken("the run is completed, and the reason on record is another one than that")
    if status not in ("completed", "running") and last and last.outcome == "completed":
        notes.broken(f"the last attempt completed, and the run {status}")
    if status in ("gave_up", "refused") and last and last.outcome == "stopped":
        notes.broken(f"the last attempt was stopped, and the run {status}")


def _check_sessions(case: Case, record: SupervisorRecord, notes: FindingBuilder) -> None:
    """A session says which code ran; and one that came to its end says when by the wall clock, which signals it received and which writers died."""
    if not recorded_by_rank(case.run.stored.config):
        return  # earlier versions did not say
    for number, session in enumerate(record.sessions):
        if not is_digest(session.code):
            notes.broken(f"session {number} ran the code {shown(session.code)}, which is no SHA-256")
        absent = [name for name in ("ended_time", "signals", "writer_deaths") if getattr(session, name) is None]
        if session.ended_at is not None and absent:
            notes.broken(f"session {number} came to its end, and does not say its {absent[0]}")
        if session.ended_at is None and len(absent) < 3:
            notes.broken(f"session {number} has no end, and says what is only known then")


def _check_signals(record: SupervisorRecord, notes: FindingBuilder) -> None:
    """Stop signals and stopped attempts explain each other: a session that stopped an attempt received one, and the reason names it."""
    for number, session in enumerate(record.sessions):
        if session.signals is None:
            continue
        if unknown := [each for each in session.signals if each not in _STOP_SIGNALS]:
            notes.broken(f"session {number} received signal {unknown[0]}, which stops no run")
        stopped = [a.attempt for a in record.attempts if a.session == number and a.outcome == "stopped"]
        if stopped and not session.signals:
            notes.broken(f"attempt {stopped[0]} was stopped, and its session received no signal")
    last = record.sessions[-1] if record.sessions else None
    if record.terminal_status == "stopped" and last and last.signals:
        names = [signal.Signals(each).name for each in last.signals if each in _STOP_SIGNALS]
        if not any(name in record.reason for name in names):
            notes.broken(f"the run was stopped, its last session received {', '.join(names) or 'no stop signal'}, and the reason names none of them")


def _check_budget(case: Case, record: SupervisorRecord, notes: FindingBuilder) -> None:
    """No supervisor restarts a run more often than allowed."""
    spent, most = restarts(charged_attempts(record.attempts, record.sessions)), case.run.stored.config.supervision.max_restarts
    if spent > most:
        notes.broken(f"supervisor.json has {plural(spent, 'restart')} since the run was last started, supervision.max_restarts is {most}")


def _check_exit(case: Case, a: Attempt, notes: FindingBuilder) -> None:
    """An attempt has an exit code or a signal, of an existing rank, that fits its outcome."""
    who, code, session = f"attempt {a.attempt}", a.exit_code, case.run.session_of(a)
    if code is not None and a.signal is not None:
        notes.broken(f"{who} has both exit code {code} and signal {a.signal}")
    if a.signal is not None and not 0 < a.signal < 65:
        notes.broken(f"{who} ended by signal {a.signal}, which there is none of")
    if a.rank is not None and (not 0 <= a.rank < a.world_size or (code == 0 and a.signal is None)):
        notes.broken(f"{who} of {plural(a.world_size, 'rank')} names rank {a.rank} as the one that ended it, with exit code {code}")
    if a.outcome in ("stopped", "hung", SURVIVED) and code == 0:
        notes.broken(f"{who} {a.outcome} and has exit code 0, which only ranks have that came to their end by themselves")
    if a.outcome == "resized" and (code, a.signal) != (0, None):
        notes.broken(f"{who} ended well to be resized, with exit code {code} and signal {a.signal}")
    if a.outcome == "completed":
        _check_completed(case, a, notes)
    if a.rank is not None and (code, a.signal) == (None, None):
        notes.broken(f"{who} names rank {a.rank} as the one that ended it, and neither an exit code nor a signal")
    if a.outcome == "died" and (code, a.signal) == (None, None) and a.ended_at is not None and session and session.ended_at is None:
        notes.broken(f"{who} died, its supervisor did not live to see how, and says when")
    if a.outcome == "died" and (code, a.signal, a.rank) == (None, None, None):
        killed = session is not None and session.ended_at is None
        if not killed:
            notes.broken(f"{who} died, nothing says of what, and its supervisor lived to see it")
    if a.ended_at is None and a.outcome != "running" and session and session.ended_at is not None:
        notes.broken(f"{who} {a.outcome} and has no end, and its supervisor lived to see it")


def _check_completed(case: Case, a: Attempt, notes: FindingBuilder) -> None:
    """A rank may end badly after the target is reached; the record is credible only if a planned fault explains it."""
    session = case.run.session_of(a)
    if a.signal is None and a.exit_code is None and session and session.ended_at is not None:
        notes.broken(f"attempt {a.attempt} completed, its supervisor lived to see it, and no exit code is on record")
    if a.signal is None and a.exit_code in (0, None):
        return
    final = case.run.logs(a.attempt).final
    late = [f for f in case.run.fired if f.attempt == a.attempt and final and f.at >= final.at - ROUNDING_S]
    if not late:
        how = f"signal {a.signal}" if a.signal is not None else f"exit code {a.exit_code}"
        notes.missing(f"attempt {a.attempt} completed, and rank {a.rank} ended with {how}: nothing on record explains that")


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
        notes.broken(f"{who} was taken for hung after {hang.waited_s:.3f} s of silence, {hang.limit_s:.3f} s were allowed")
    if not set(hang.ranks) <= set(range(a.world_size)):
        notes.broken(f"{who} of {plural(a.world_size, 'rank')} hung because of ranks {list(hang.ranks)}")
    for text in hang_contradictions(case, a, hang):
        notes.broken(f"{who} {text}")
    if a.ended_at is None:
        return
    if hang.waited_s > a.ended_at - a.launched_at + ROUNDING_S:
        notes.broken(f"{who} was silent for {hang.waited_s:.3f} s and lasted for {a.ended_at - a.launched_at:.3f} s")
    for rank, lines in sorted(case.run.logs(a.attempt).ranks.items()):
        silent = [line for line in lines.events if line.at > a.ended_at - hang.waited_s] if rank < local_ranks(case, a.attempt) else []
        if len(silent) > 1:  # a rank may still write one line after its last heartbeat
            notes.broken(f"{who} hung: nothing moved in its last {hang.waited_s:.3f} s, in which rank {rank} logged {plural(len(silent), 'step')}")


def _check_stragglers(case: Case, a: Attempt, notes: FindingBuilder) -> None:
    for each in a.stragglers:
        for text in straggler_contradictions(case, a, each):
            notes.broken(f"attempt {a.attempt} has rank {each.rank} as a straggler in step {each.global_step}, {text}")
        inside = a.resumed_from_step < each.global_step <= (a.last_step or a.resumed_from_step) + 1
        if not (0 <= each.rank < a.world_size and each.own_s > each.others_s >= 0 and inside):
            text = f"rank {each.rank} in step {each.global_step}, {each.own_s:.3f} s to the others' {each.others_s:.3f} s"
            notes.broken(f"attempt {a.attempt} has a straggler that cannot be: {text}")


def _check_forgone(case: Case, a: Attempt, each: SkippedSnapshot, notes: FindingBuilder) -> None:
    """A rejected snapshot had been taken: by an earlier attempt, of a step that it did, newer than the state resumed from."""
    who, config = f"attempt {a.attempt} refused a snapshot of step {each.global_step} of attempt {each.attempt}", case.run.stored.config
    before = case.attempt(each.attempt)
    if not strategy_of(config).snapshots:
        notes.broken(f"{who}, its configuration takes none")
    elif before is None or each.attempt >= a.attempt or before.session != a.session:
        notes.broken(f"{who}, which was not before it under the same supervisor")
    elif not a.resumed_from_step < each.global_step <= furthest(case.run, each.attempt):
        notes.broken(f"{who}, which went on behind step {a.resumed_from_step} and had come to step {furthest(case.run, each.attempt)}")
    elif each.global_step % config.checkpoint.memory_every and each.global_step % config.checkpoint.every:
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
    if not any(span.category == "snapshot" and span.global_step == each.global_step for span in account.spans):
        notes.broken(f"{who}, and rank 0 has booked none in that step")


def _check_phases(case: Case, record: SupervisorRecord, notes: FindingBuilder) -> None:
    """The phases in supervisor.json are those computed from the records; there may be none if the supervisor was killed and not restarted."""
    if case.run.unread or not record.sessions or record.sessions[-1].ended_at is None:
        return
    folded, absent = phases(case.run, case.timeline), lacking(case)
    for a in record.attempts:
        expected = folded.get(a.attempt, {})
        if not a.phases and not recorded_by_rank(case.run.stored.config):
            continue
        for name in sorted(a.phases.keys() | expected.keys()):
            recorded, measured = a.phases.get(name, 0.0), expected.get(name, 0.0)
            if abs(recorded - measured) > _PHASE_S:
                text = f"attempt {a.attempt} took {recorded:.6f} s for {name} by supervisor.json, {measured:.6f} s by the records"
                if absent:
                    notes.missing(f"{text} ({absent})")
                else:
                    notes.broken(text)
                return
