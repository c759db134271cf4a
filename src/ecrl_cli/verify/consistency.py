"""Promises records-consistent and target-reached: the records agree with each other and the
configuration; the run reached its target.
"""

from __future__ import annotations

from ecrl_cli.checkpoint.format.manifest import components
from ecrl_cli.checkpoint.format.names import COMPONENTS
from ecrl_cli.config.identity import reference_id_of, run_id_of
from ecrl_cli.errors import plural
from ecrl_cli.history.lineage import LineChains, ancestry, lines_of
from ecrl_cli.records.events import Attempt, FinalState
from ecrl_cli.records.journal import read_json
from ecrl_cli.verify.attempts import check_attempts
from ecrl_cli.verify.configuration import check_configuration
from ecrl_cli.verify.continuation import check_continuations, continued
from ecrl_cli.verify.disk_state import StoredCheckpoint
from ecrl_cli.verify.evaluations import check_evaluations
from ecrl_cli.verify.labels import check_labels, other_code, other_environment, unused_gpus
from ecrl_cli.verify.metrics_cache import check_metrics
from ecrl_cli.verify.optional_files import check_optional_files, unexplained
from ecrl_cli.verify.supervisor_record import check_supervisor_record
from ecrl_cli.verify.verdict import Finding, FindingBuilder
from ecrl_cli.verify.verification_input import Case
from ecrl_cli.verify.vocabulary import check_words

RECORDS, TARGET = "records-consistent", "target-reached"


def records_consistent(case: Case) -> Finding:
    """Identity, attempts, logs, line chains and metrics are each recorded twice in the run
    directory and must agree.
    """
    notes = FindingBuilder(RECORDS)
    for file in case.run.unread:
        notes.missing(f"{file.path} cannot be read: {file.reason}")
    _check_identity(case, notes)
    check_configuration(case, notes)
    check_words(case, notes)
    check_labels(case, notes)
    check_optional_files(case, notes)
    if case.run.supervisor is None:
        notes.missing("supervisor.json is missing")
    else:
        check_attempts(case, case.run.supervisor, notes)
        check_continuations(case, notes)
        check_supervisor_record(case, case.run.supervisor, notes)
    evaluated = check_evaluations(case, notes)
    chains = LineChains(case.run)
    chained = sum(_check_chain(case, c, chains, notes) for c in case.disk if c.report.ok)
    check_metrics(case, notes)
    measured = f"; {plural(evaluated, 'evaluation')} on held-out data" if evaluated else ""
    agree = plural(len(case.attempts), "attempt agrees with its", "attempts agree with their")
    kept = (
        f"{agree} logs; {plural(chained, 'checkpoint vouches', 'checkpoints vouch')} for the lines"
        f" before{measured}"
    )
    return notes.finding(
        kept,
        [
            *(unexplained(case) if notes.clean else ()),
            *other_code(case),
            *other_environment(case),
            *unused_gpus(case),
        ],
    )


def _check_identity(case: Case, notes: FindingBuilder) -> None:
    stored = case.run.stored
    # as stored: this version may know keys that the run's version did not
    recorded = read_json(case.run.layout.config)["config"]
    if run_id_of(recorded) != stored.run_id:
        notes.broken(
            "config.json does not hash to its run_id: it was changed after the run was laid down"
        )
    if reference_id_of(recorded) != stored.reference_id:
        notes.broken("config.json does not hash to its reference_id")
    supervisor = case.run.supervisor
    if supervisor and supervisor.run_id != stored.run_id:
        notes.broken(
            f"supervisor.json is of run {supervisor.run_id[:8]}, config.json of run"
            f" {stored.run_id[:8]}"
        )
    # else the next session is about to say it
    begun = supervisor and (not case.live or supervisor.terminal_status == "running")
    if supervisor and begun and supervisor.target_steps != stored.config.target_steps:
        notes.broken(
            f"supervisor.json aims at step {supervisor.target_steps}, config.json at step"
            f" {stored.config.target_steps}"
        )
    for c in case.disk:
        if c.report.run_id not in (None, stored.run_id):
            notes.broken(f"{c.path} belongs to run {str(c.report.run_id)[:8]}")


def _check_chain(
    case: Case, c: StoredCheckpoint, chains: LineChains, notes: FindingBuilder
) -> bool:
    """The lines up to a checkpoint match the line chain stored in it; returns whether that could be
    checked.
    """
    committed = case.committed(c)
    if committed is None:
        return False
    path = ancestry(case.run, committed.attempt, committed.global_step)
    if not path.whole:
        return False
    # ranks that have left stay in the chain
    ranks = max(segment.world_size for segment in path.chained)
    if len(c.line_chain) != ranks:
        notes.missing(f"{c.path} holds no line chain for each of {plural(ranks, 'rank')}")
        return False
    for rank, chain in enumerate(c.line_chain):
        if chains.of(path, rank) != chain:
            present = {
                step
                for segment in path.chained
                for step, r in lines_of(case.run, segment)
                if r == rank
            }
            due = sum(len(segment.steps()) for segment in path.chained if rank < segment.world_size)
            if len(present) < due:
                notes.missing(
                    f"{plural(due - len(present), 'line')} of rank {rank} up to step {c.step} are"
                    f" gone, {c.path} was taken after them"
                )
            else:
                notes.broken(
                    f"the lines of rank {rank} up to step {c.step} are not those that {c.path} was"
                    " taken after"
                )
    return True


def target_reached(case: Case) -> Finding:
    """A completed run has its final record at the target and all steps to it; one that has not
    completed is unknown.
    """
    notes = FindingBuilder(TARGET)
    target, supervisor = case.run.stored.config.target_steps, case.run.supervisor
    status = supervisor.terminal_status if supervisor else "not on record"
    last = case.attempts[-1] if case.attempts else None
    final = case.run.logs(last.attempt).final if last and not continued(case, last) else None
    if case.live:
        notes.missing(f"the run is still running: judged to step {case.path.last_step} of {target}")
    elif status != "completed":
        notes.missing(f"the run is {status} at step {case.path.last_step} of {target}")
    elif last is None or last.outcome != "completed":
        notes.broken(
            "the run is said to be completed, its last attempt"
            f" {last.outcome if last else 'is not on record'}"
        )
    elif final is None:
        notes.missing(
            f"attempt {last.attempt} left no final.json: whether and how it reached step {target}"
            " is not known"
        )
    if final and final.global_step != target:
        notes.broken(f"final.json is of step {final.global_step}, the target is step {target}")
    if case.completed and case.path.last_step < target:
        notes.broken(
            f"the run is said to be completed, its logs end at step {case.path.last_step} of"
            f" {target}"
        )
    if final:
        _check_end_state(case, final, notes)
    for a in case.run.attempt_logs:
        if (
            a.final
            and last
            and (not _may_end(case, a.attempt, last) or a.final.attempt != a.attempt)
        ):
            notes.broken(
                f"attempt {a.attempt} left the final record of attempt {a.final.attempt}, the last"
                f" attempt is {last.attempt}"
            )
    return notes.finding(f"step {target} is committed, its final state is on record")


def _may_end(case: Case, attempt: int, last: Attempt) -> bool:
    """Whether `attempt` may have left a final record: the last one, and those from which the run
    was continued.
    """
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
