"""Promises records-consistent and target-reached: the records agree with each other and the configuration; the run reached its target."""

from __future__ import annotations

from ecrl_cli.checkpoint.format.manifest import components
from ecrl_cli.checkpoint.format.names import COMPONENTS
from ecrl_cli.config.elastic import may_shrink, next_change, place_ranks, world_size_after
from ecrl_cli.config.identity import reference_id_of, run_id_of
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import plural
from ecrl_cli.history.lineage import ancestry, furthest, line_chain, lines_of
from ecrl_cli.records.events import Attempt, FinalState, SupervisorRecord
from ecrl_cli.records.journal import read_json
from ecrl_cli.records.messages import AttemptSpec
from ecrl_cli.verify.attempt_continuity import check_continued, check_recalled, size_of_survivors
from ecrl_cli.verify.configuration import check_configuration
from ecrl_cli.verify.continuation import check_continuations, continued
from ecrl_cli.verify.disk_state import StoredCheckpoint
from ecrl_cli.verify.evaluations import check_evaluations
from ecrl_cli.verify.labels import check_labels, other_code, other_environment
from ecrl_cli.verify.metrics_cache import check_metrics
from ecrl_cli.verify.supervisor_record import check_supervisor_record
from ecrl_cli.verify.survivor_reports import allowed_missing_lines
from ecrl_cli.verify.verdict import Finding, FindingBuilder
from ecrl_cli.verify.verification_input import Case
from ecrl_cli.verify.vocabulary import check_words

RECORDS, TARGET = "records-consistent", "target-reached"


def records_consistent(case: Case) -> Finding:
    """Identity, attempts, logs, line chains and metrics are each recorded twice in the run directory and must agree."""
    notes = FindingBuilder(RECORDS)
    for file in case.run.unread:
        notes.missing(f"{file.path} cannot be read: {file.reason}")
    _check_identity(case, notes)
    check_configuration(case, notes)
    check_words(case, notes)
    check_labels(case, notes)
    if case.run.supervisor is None:
        notes.missing("supervisor.json is missing")
    else:
        _check_supervisor(case, case.run.supervisor, notes)
        check_continuations(case, notes)
        check_supervisor_record(case, case.run.supervisor, notes)
    evaluated = check_evaluations(case, notes)
    chained = sum(_check_chain(case, c, notes) for c in case.disk if c.report.ok)
    check_metrics(case, notes)
    measured = f"; {plural(evaluated, 'evaluation')} on held-out data" if evaluated else ""
    agree = plural(len(case.attempts), "attempt agrees with its", "attempts agree with their")
    kept = f"{agree} logs; {plural(chained, 'checkpoint vouches', 'checkpoints vouch')} for the lines before{measured}"
    return notes.finding(kept, [*other_code(case), *other_environment(case)])


def _check_identity(case: Case, notes: FindingBuilder) -> None:
    stored = case.run.stored
    recorded = read_json(case.run.layout.config)["config"]  # as stored: this version may know keys that the run's version did not
    if run_id_of(recorded) != stored.run_id:
        notes.broken("config.json does not hash to its run_id: it was changed after the run was laid down")
    if reference_id_of(recorded) != stored.reference_id:
        notes.broken("config.json does not hash to its reference_id")
    supervisor = case.run.supervisor
    if supervisor and supervisor.run_id != stored.run_id:
        notes.broken(f"supervisor.json is of run {supervisor.run_id[:8]}, config.json of run {stored.run_id[:8]}")
    if supervisor and supervisor.target_steps != stored.config.target_steps:
        notes.broken(f"supervisor.json aims at step {supervisor.target_steps}, config.json at step {stored.config.target_steps}")
    for c in case.disk:
        if c.report.run_id not in (None, stored.run_id):
            notes.broken(f"{c.path} belongs to run {str(c.report.run_id)[:8]}")


def _check_supervisor(case: Case, supervisor: SupervisorRecord, notes: FindingBuilder) -> None:
    numbers = [a.attempt for a in supervisor.attempts]
    folders = [a.attempt for a in case.run.attempt_logs]
    if numbers != list(range(len(numbers))):
        notes.broken(f"supervisor.json numbers its attempts {numbers}")
    for number in sorted(set(folders) - set(numbers)):
        if case.run.logs(number).ranks:  # a supervisor that dies in a launch leaves a launch.json that nothing read
            notes.broken(f"attempt {number} left logs and is not in supervisor.json")
    for number in sorted(set(numbers) - set(folders)):
        notes.missing(f"attempt {number} is in supervisor.json and left no logs")
    deaths = sum(a.outcome in ("died", "hung") for a in supervisor.attempts[:-1])
    if supervisor.restarts != deaths:
        notes.broken(
            f"supervisor.json counts {plural(supervisor.restarts, 'restart')}, {plural(deaths, 'attempt follows', 'attempts follow')} one that died"
        )
    if any(not 0 <= a.session < len(supervisor.sessions) for a in supervisor.attempts):
        notes.broken("an attempt belongs to no session")
    for a in supervisor.attempts:
        _check_attempt(case, a, notes)


def _check_attempt(case: Case, a: Attempt, notes: FindingBuilder) -> None:
    logs, who = case.run.logs(a.attempt), f"attempt {a.attempt}"
    _check_size(case, a, notes)
    check_continued(case, a, notes)
    check_recalled(case, a, notes)
    if logs.order and (logs.order.resume_from, logs.order.resume_step) != (a.resumed_from, a.resumed_from_step):
        notes.broken(f"{who} was told to resume behind step {logs.order.resume_step}, supervisor.json says step {a.resumed_from_step}")
    if logs.order and logs.order.attempt != a.attempt:
        notes.broken(f"launch.json of {who} is of attempt {logs.order.attempt}")
    seen = max((max(furthest(case.run, b.attempt), b.last_step or 0) for b in case.attempts if b.attempt < a.attempt), default=0)
    if logs.order and logs.order.max_step_seen > seen:
        notes.broken(f"{who} was ordered as if step {logs.order.max_step_seen} had been done, the attempts before it came to step {seen}")
    known = max((b.last_step or 0 for b in case.attempts if b.attempt < a.attempt), default=0)  # what the supervisor goes by
    if logs.order and logs.order.max_step_seen < known:
        notes.broken(f"{who} was ordered as if no step behind {logs.order.max_step_seen} had been done, supervisor.json says step {known}")
    if a.attempt in {folder.attempt for folder in case.run.attempt_logs} and logs.order is None:
        notes.missing(f"{who} has no launch.json")
    if a.outcome == "completed" and a is not case.attempts[-1] and not continued(case, a):
        notes.broken(f"{who} completed and another attempt follows it")
    steps = [line.global_step for line in logs.ranks[0].events] if 0 in logs.ranks else []
    if a.outcome == "running" or not steps:
        if a.last_step is not None and not steps and (a.attempt, 0, a.last_step) not in allowed_missing_lines(case):
            notes.missing(f"{who} reached step {a.last_step}, its log of rank 0 is empty or gone")
        return
    if a.first_step != steps[0] or (a.last_step or 0) < steps[-1]:
        notes.broken(f"{who} did steps {a.first_step} to {a.last_step} by supervisor.json, {steps[0]} to {steps[-1]} by the log of rank 0")
    elif (a.last_step or 0) > steps[-1] and (a.attempt, 0, a.last_step) not in allowed_missing_lines(case):
        notes.missing(f"{who} reached step {a.last_step}, its log of rank 0 ends at step {steps[-1]}")


def _check_size(case: Case, a: Attempt, notes: FindingBuilder) -> None:
    """The world size that the configuration has after the step resumed from, and no step beyond the next change."""
    config, order, who = case.run.stored.config, case.run.logs(a.attempt).order, f"attempt {a.attempt}"
    due, until = _size_due(config, a, order), next_change(config, a.resumed_from_step)
    if a.world_size != due:
        notes.broken(f"{who} had {plural(a.world_size, 'rank')}, the configuration says {due}")
    if order and (order.world_size, order.until) != (due, until):
        notes.broken(f"{who} was ordered {plural(order.world_size, 'rank')} up to step {order.until}, the configuration says {due} up to {until}")
    if until and (a.last_step or 0) > until:
        notes.broken(f"{who} went on to step {a.last_step} with {plural(a.world_size, 'rank')}, the world size changes behind step {until}")
    if a.outcome == "resized" and a.last_step != until:
        notes.broken(f"{who} is said to have been resized behind step {a.last_step}, the configuration changes the size behind step {until}")
    if a.outcome == "resized" and a is case.attempts[-1] and case.completed:
        notes.broken(f"{who} was resized and none follows it")


def _size_due(config: RunConfig, a: Attempt, order: AttemptSpec | None) -> int:
    """The planned world size; a smaller one only if the run may shrink and nodes on record did not answer: then exactly what the others hold."""
    planned = world_size_after(config, a.resumed_from_step)
    if not may_shrink(config):
        return size_of_survivors(config, a, planned)
    if order is None:
        return min(planned, a.world_size)  # the missing record is reported elsewhere
    return place_ranks(config, len(order.nodes))[0] if order.silent and order.nodes else planned


def _check_chain(case: Case, c: StoredCheckpoint, notes: FindingBuilder) -> bool:
    """The lines up to a checkpoint match the line chain stored in it; returns whether that could be checked."""
    committed = case.committed(c)
    if committed is None:
        return False
    path = ancestry(case.run, committed.attempt, committed.global_step)
    if not path.whole:
        return False
    ranks = max(segment.world_size for segment in path.chained)  # ranks that have left stay in the chain
    if len(c.line_chain) != ranks:
        notes.missing(f"{c.path} holds no line chain for each of {plural(ranks, 'rank')}")
        return False
    for rank, chain in enumerate(c.line_chain):
        if line_chain(case.run, path, rank) != chain:
            present = {step for segment in path.chained for step, r in lines_of(case.run, segment) if r == rank}
            due = sum(len(segment.steps()) for segment in path.chained if rank < segment.world_size)
            if len(present) < due:
                notes.missing(f"{plural(due - len(present), 'line')} of rank {rank} up to step {c.step} are gone, {c.path} was taken behind them")
            else:
                notes.broken(f"the lines of rank {rank} up to step {c.step} are not those that {c.path} was taken behind")
    return True


def target_reached(case: Case) -> Finding:
    """A completed run has its final record at the target and all steps to it; one that has not completed is unknown."""
    notes = FindingBuilder(TARGET)
    target, supervisor = case.run.stored.config.target_steps, case.run.supervisor
    status = supervisor.terminal_status if supervisor else "not on record"
    last = case.attempts[-1] if case.attempts else None
    final = case.run.logs(last.attempt).final if last and not continued(case, last) else None
    if status != "completed":
        notes.missing(f"the run is {status} at step {case.path.last_step} of {target}")
    elif last is None or last.outcome != "completed":
        notes.broken(f"the run is said to be completed, its last attempt {last.outcome if last else 'is not on record'}")
    elif final is None:
        notes.missing(f"attempt {last.attempt} left no final.json: whether and how it reached step {target} is not known")
    if final and final.global_step != target:
        notes.broken(f"final.json is of step {final.global_step}, the target is step {target}")
    if status == "completed" and case.path.last_step < target:
        notes.broken(f"the run is said to be completed, its logs end at step {case.path.last_step} of {target}")
    if final:
        _check_end_state(case, final, notes)
    for a in case.run.attempt_logs:
        if a.final and last and (not _may_end(case, a.attempt, last) or a.final.attempt != a.attempt):
            notes.broken(f"attempt {a.attempt} left the final record of attempt {a.final.attempt}, the last attempt is {last.attempt}")
    return notes.finding(f"step {target} is committed, its final state is on record")


def _may_end(case: Case, attempt: int, last: Attempt) -> bool:
    """Whether `attempt` may have left a final record: the last one, and those from which the run was continued."""
    record = case.attempt(attempt)
    return attempt == last.attempt or (record is not None and continued(case, record))


def _check_end_state(case: Case, final: FinalState, notes: FindingBuilder) -> None:
    """The final digests are those of the checkpoint at the target step, if there is one."""
    for c in case.disk:
        if c.report.ok and c.report.manifest and c.step == final.global_step:
            stored = components(c.report.manifest)
            for name in COMPONENTS:
                if getattr(stored, name) != getattr(final, f"{name}_digest"):
                    notes.broken(f"the {name} of {c.path} are not those of final.json")
