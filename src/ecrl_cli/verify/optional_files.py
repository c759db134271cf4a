"""Checks the records that only some configurations have: that none is there which the configuration
rules out, and that those it owes are there.
"""

from __future__ import annotations

from collections.abc import Iterator

from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.errors import plural
from ecrl_cli.failures.fault_kind import Victim, recorded_kind
from ecrl_cli.records.layout import is_folder
from ecrl_cli.verify.verdict import FindingBuilder
from ecrl_cli.verify.verification_input import Case

# left by a supervisor that died in a launch, or a launch that failed
_OF_A_LAUNCH = ("launch.json", "output.log")


def check_optional_files(case: Case, notes: FindingBuilder) -> None:
    """Check disk.jsonl, scrub.jsonl, the checkpoints that could not be loaded, and the nodes of
    each launch.
    """
    _check_sampled(case, notes)
    _check_unloadable(case, notes)
    _check_nodes(case, notes)
    _check_unlisted(case, notes)


def _check_sampled(case: Case, notes: FindingBuilder) -> None:
    """No samples of what was not to be sampled. A later session may be given other intervals, which
    config.json does not say, and a disk may have no counters.
    """
    if len(case.run.sessions) != 1:
        return
    config, layout = case.run.stored.config, case.run.layout
    supervision, strategy = config.supervision, strategy_of(config)
    for path, key, asked in (
        (layout.disk, "disk_interval_s", supervision.disk_interval_s),
        (layout.scrubs, "scrub_every_s", supervision.scrub_every_s),
    ):
        if path.exists() and not asked:
            notes.missing(
                f"{path.name} is there, and supervision.{key} is 0: where it is from is not known"
            )
    scrubbed = supervision.scrub_every_s and strategy.saves and not strategy.checkpointer
    if scrubbed and case.ended and not layout.scrubs.exists():
        notes.missing("scrub.jsonl is missing, which supervision.scrub_every_s asks for")


def _check_unloadable(case: Case, notes: FindingBuilder) -> None:
    """Only another checkpointer can find that it cannot load a checkpoint: ECRL's own are checked
    before a launch.
    """
    if strategy_of(case.run.stored.config).checkpointer:
        return
    for logs in case.run.attempt_logs:
        for rank in sorted(logs.unloadable)[:1]:
            notes.broken(
                f"rank {rank} of attempt {logs.attempt} could not load a checkpoint, and no other"
                " checkpointer had written it"
            )


def _check_nodes(case: Case, notes: FindingBuilder) -> None:
    """No launch of a run on one node names nodes."""
    if case.run.stored.config.supervision.nodes > 1:
        return
    for logs in case.run.attempt_logs:
        order = logs.order
        if order and (order.nodes or order.silent):
            named = plural(len(order.nodes) + len(order.silent), "node")
            notes.broken(
                f"launch.json of attempt {logs.attempt} names {named}, config.json has one node"
            )


def _check_unlisted(case: Case, notes: FindingBuilder) -> None:
    """An attempt that supervisor.json does not list has left no more than its launch."""
    layout, listed = case.run.layout, {a.attempt for a in case.attempts}
    for logs in case.run.attempt_logs if case.run.supervisor else ():
        folder = layout.attempt(logs.attempt).folder
        if logs.attempt in listed or logs.ranks or not is_folder(folder):
            continue  # a log of a rank is reported with the attempts
        more = sorted(path.name for path in folder.iterdir() if path.name not in _OF_A_LAUNCH)
        if more and not case.live:
            notes.broken(f"attempt {logs.attempt} left {more[0]} and is not in supervisor.json")


def unexplained(case: Case) -> tuple[str, ...]:
    """Evidence of signals and deaths of writers that nothing else on record bears out: a signal may
    come too late to stop an attempt, and a writer may die between two saves.
    """
    return (*_signals(case), *_writers(case))


def _signals(case: Case) -> Iterator[str]:
    for number, session in enumerate(case.run.sessions):
        stopped = any(a.session == number and a.outcome == "stopped" for a in case.attempts)
        if session.signals and not stopped:
            count = plural(len(session.signals), "stop signal")
            yield f"session {number} received {count}, and no attempt of it was stopped"


def _writers(case: Case) -> Iterator[str]:
    of = {a.attempt: a.session for a in case.attempts}
    killed = [
        of.get(fired.attempt)
        for fired in case.run.fired
        if recorded_kind(fired.kind).victim is Victim.WRITER
    ]
    for number, session in enumerate(case.run.sessions):
        more = (session.writer_deaths or 0) - killed.count(number)
        if more > 0:
            yield (
                f"{plural(more, 'background writer')} of session {number} died that the plan did"
                " not kill: only supervisor.json says so"
            )
