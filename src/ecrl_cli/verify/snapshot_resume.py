"""Checks attempts resumed from an in-memory snapshot: it can have existed, and held what the ranks had logged."""

from __future__ import annotations

from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.records.events import Attempt
from ecrl_cli.records.survivor_records import SNAPSHOT, SURVIVORS
from ecrl_cli.verify.verdict import FindingBuilder
from ecrl_cli.verify.verification_input import Case


def check_recalled(case: Case, a: Attempt, notes: FindingBuilder) -> None:
    """The memory itself is gone; its content is checked by its hash in launch.json and, if ranks log their state, by the state digest."""
    who, order = f"attempt {a.attempt}", case.run.logs(a.attempt).order
    if order and order.snapshot_sha256 != a.snapshot_sha256:
        notes.broken(f"{who} was ordered to load a snapshot that hashes to {order.snapshot_sha256[:8]}, supervisor.json says {a.snapshot_sha256[:8]}")
    _check_newest(case, a, notes)
    if a.memory != SNAPSHOT:
        if a.snapshot_sha256 or a.snapshot_state:
            notes.broken(f"{who} says what a snapshot held, and went on from none")
        return
    if not strategy_of(case.run.stored.config).snapshots:
        notes.broken(f"{who} went on from a snapshot in memory, its configuration takes none")
    before = case.attempt(a.continues) if a.continues is not None else None
    if before is None:
        return
    if before.session != a.session:
        notes.broken(f"{who} went on from a snapshot of attempt {before.attempt}, which went down with its supervisor")
    _check_state(case, a, before, notes)


def _check_newest(case: Case, a: Attempt, notes: FindingBuilder) -> None:
    """The attempt resumed from the newest snapshot of the previous attempt, or rejected it on record, or from something durable as new.

    Rank 0 closes the span of a snapshot once it is complete; the next one overwrites the older of two, so this one stays.
    """
    before = case.attempt(a.attempt - 1)
    if not strategy_of(case.run.stored.config).snapshots or before is None or before.session != a.session or a.memory == SURVIVORS:
        return
    account = case.spans.of(before.attempt, 0)
    taken = [span.global_step for span in (account.spans if account else ()) if span.category == "snapshot"]
    newest = max((step for step in taken if step > before.resumed_from_step), default=0)
    refused = {(each.attempt, each.global_step) for each in a.forgone}
    if newest > a.resumed_from_step and (before.attempt, newest) not in refused:
        text = f"attempt {before.attempt} had taken a snapshot of step {newest}, and no refusal of it is on record"
        notes.broken(f"attempt {a.attempt} went on behind step {a.resumed_from_step}: {text}")


def _check_state(case: Case, a: Attempt, before: Attempt, notes: FindingBuilder) -> None:
    """Every rank had logged the step of the snapshot, and its state is the one that rank 0 logged.

    Other ranks may differ: between two steps each rank has its own running statistics of BatchNorm.
    """
    step = a.resumed_from_step
    who = f"attempt {a.attempt} went on from a snapshot of step {step} of attempt {before.attempt}"
    logs = case.run.logs(before.attempt).ranks
    lines = {rank: line for rank, found in logs.items() for line in found.events if line.global_step == step}
    if missing := [rank for rank in range(before.world_size) if rank not in lines]:
        notes.missing(f"{who}, and rank {missing[0]} has no line of it")
    if 0 in lines and lines[0].state_digest not in (None, a.snapshot_state):
        notes.broken(f"{who} that holds another state than rank 0 logged")
