"""Checks each attempt of supervisor.json: against its logs and launch.json, against the
configuration, and against the attempt that it goes on from, also where it goes on from memory:
survivors and newcomers, and snapshots that can have existed and held what was logged.
"""

from __future__ import annotations

from ecrl_cli.checkpoint.format.canonical_json import is_digest
from ecrl_cli.config.elastic import fits, may_shrink, next_change, place_ranks, world_size_after
from ecrl_cli.config.recoveries import recovery_of, survivors_stay
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.errors import plural
from ecrl_cli.history.lineage import furthest, steps_of
from ecrl_cli.history.membership import successor, surviving_ranks
from ecrl_cli.records.events import Attempt, SupervisorRecord
from ecrl_cli.records.messages import AttemptSpec
from ecrl_cli.records.state_digests import recorded_by_rank
from ecrl_cli.records.survivor_records import SNAPSHOT, SURVIVED, SURVIVORS
from ecrl_cli.verify.continuation import continued
from ecrl_cli.verify.survivor_reports import allowed_missing_lines
from ecrl_cli.verify.verdict import FindingBuilder
from ecrl_cli.verify.verification_input import Case

_TOLD = ("continues", "memory", "origins", "joined")


def check_attempts(case: Case, supervisor: SupervisorRecord, notes: FindingBuilder) -> None:
    """Every attempt of supervisor.json: its number, session and logs, its size, and what it went on
    from.
    """
    numbers = [a.attempt for a in supervisor.attempts]
    folders = [a.attempt for a in case.run.attempt_logs]
    if numbers != list(range(len(numbers))):
        notes.broken(f"supervisor.json numbers its attempts {numbers}")
    for number in sorted(set(folders) - set(numbers)):
        # a supervisor that dies in a launch leaves a launch.json that nothing read
        if case.run.logs(number).ranks:
            notes.broken(f"attempt {number} left logs and is not in supervisor.json")
    for number in sorted(set(numbers) - set(folders)):
        notes.missing(f"attempt {number} is in supervisor.json and left no logs")
    deaths = sum(a.outcome in ("died", "hung") for a in supervisor.attempts[:-1])
    if supervisor.restarts != deaths:
        notes.broken(
            f"supervisor.json counts {plural(supervisor.restarts, 'restart')},"
            f" {plural(deaths, 'attempt follows', 'attempts follow')} one that died"
        )
    if any(not 0 <= a.session < len(supervisor.sessions) for a in supervisor.attempts):
        notes.broken("an attempt belongs to no session")
    for a in supervisor.attempts:
        _check_attempt(case, a, notes)


def _check_attempt(case: Case, a: Attempt, notes: FindingBuilder) -> None:
    logs, who = case.run.logs(a.attempt), f"attempt {a.attempt}"
    _check_size(case, a, notes)
    _check_continued(case, a, notes)
    check_recalled(case, a, notes)
    if logs.order and (logs.order.resume_from, logs.order.resume_step) != (
        a.resumed_from,
        a.resumed_from_step,
    ):
        notes.broken(
            f"{who} was told to resume after step {logs.order.resume_step}, supervisor.json says"
            f" step {a.resumed_from_step}"
        )
    if logs.order and logs.order.attempt != a.attempt:
        notes.broken(f"launch.json of {who} is of attempt {logs.order.attempt}")
    seen = max(
        (
            max(furthest(case.run, b.attempt), b.last_step or 0)
            for b in case.attempts
            if b.attempt < a.attempt
        ),
        default=0,
    )
    if logs.order and logs.order.max_step_seen > seen:
        notes.broken(
            f"{who} was ordered as if step {logs.order.max_step_seen} had been done, the attempts"
            f" before it came to step {seen}"
        )
    # what the supervisor goes by
    known = max((b.last_step or 0 for b in case.attempts if b.attempt < a.attempt), default=0)
    if logs.order and logs.order.max_step_seen < known:
        notes.broken(
            f"{who} was ordered as if no step after {logs.order.max_step_seen} had been done,"
            f" supervisor.json says step {known}"
        )
    if a.attempt in {folder.attempt for folder in case.run.attempt_logs} and logs.order is None:
        notes.missing(f"{who} has no launch.json")
    if a.outcome == "completed" and a is not case.attempts[-1] and not continued(case, a):
        notes.broken(f"{who} completed and another attempt follows it")
    steps = steps_of(logs.ranks[0]) if 0 in logs.ranks else []
    if a.outcome == "running" or not steps:
        if (
            a.last_step is not None
            and not steps
            and (a.attempt, 0, a.last_step) not in allowed_missing_lines(case)
        ):
            notes.missing(f"{who} reached step {a.last_step}, its log of rank 0 is empty or gone")
        return
    if a.first_step != steps[0] or (a.last_step or 0) < steps[-1]:
        notes.broken(
            f"{who} did steps {a.first_step} to {a.last_step} by supervisor.json, {steps[0]} to"
            f" {steps[-1]} by the log of rank 0"
        )
    elif (a.last_step or 0) > steps[-1] and (
        a.attempt,
        0,
        a.last_step,
    ) not in allowed_missing_lines(case):
        notes.missing(
            f"{who} reached step {a.last_step}, its log of rank 0 ends at step {steps[-1]}"
        )


def _check_size(case: Case, a: Attempt, notes: FindingBuilder) -> None:
    """The world size that the configuration has after the step resumed from, and no step beyond the
    next change.
    """
    config, order, who = (
        case.run.stored.config,
        case.run.logs(a.attempt).order,
        f"attempt {a.attempt}",
    )
    due, until = _size_due(config, a, order), next_change(config, a.resumed_from_step)
    if a.world_size != due:
        notes.broken(f"{who} had {plural(a.world_size, 'rank')}, the configuration says {due}")
    if order and (order.world_size, order.until) != (due, until):
        notes.broken(
            f"{who} was ordered {plural(order.world_size, 'rank')} up to step {order.until}, the"
            f" configuration says {due} up to {until}"
        )
    if until and (a.last_step or 0) > until:
        notes.broken(
            f"{who} went on to step {a.last_step} with {plural(a.world_size, 'rank')}, the world"
            f" size changes after step {until}"
        )
    if a.outcome == "resized" and a.last_step != until:
        notes.broken(
            f"{who} is said to have been resized after step {a.last_step}, the configuration"
            f" changes the size after step {until}"
        )
    if a.outcome == "resized" and a is case.attempts[-1] and case.completed:
        notes.broken(f"{who} was resized and none follows it")


def _size_due(config: RunConfig, a: Attempt, order: AttemptSpec | None) -> int:
    """The planned world size; a smaller one only if the run may shrink and nodes on record did not
    answer: then exactly what the others hold.
    """
    planned = world_size_after(config, a.resumed_from_step)
    if not may_shrink(config):
        return _size_of_survivors(config, a, planned)
    if order is None:
        return min(planned, a.world_size)  # the missing record is reported elsewhere
    return place_ranks(config, len(order.nodes))[0] if order.silent and order.nodes else planned


def _size_of_survivors(config: RunConfig, a: Attempt, planned: int) -> int:
    """The world size that `a` must have: as planned; with a recovery that shrinks, survivors plus
    joined spares if they can share the batch.
    """
    if not recovery_of(config).shrinks or a.memory != SURVIVORS:
        return planned
    there = len(a.origins)
    return there if 0 < there <= planned and fits(config, there) else planned


def _check_continued(case: Case, a: Attempt, notes: FindingBuilder) -> None:
    """Check an attempt's claims about its predecessor, against its launch.json and the previous
    attempt.
    """
    who, order = f"attempt {a.attempt}", case.run.logs(a.attempt).order
    for name in _TOLD if order else ():
        if getattr(order, name) != getattr(a, name):
            notes.broken(
                f"{who} was ordered {name} {getattr(order, name)!r}, supervisor.json says"
                f" {getattr(a, name)!r}"
            )
    after = successor(case.run, a.attempt)
    if (
        a.outcome == SURVIVED
        and after
        and after.session == a.session
        and (after.continues, after.memory) != (a.attempt, SURVIVORS)
    ):
        notes.broken(f"{who} survived its dead, and attempt {after.attempt} does not go on with it")
    if (a.continues is None) != (not a.memory) or a.memory not in ("", SURVIVORS, SNAPSHOT):
        notes.broken(f"{who} continues attempt {a.continues} from {a.memory or 'no'} memory")
    elif a.memory and a.resumed_from is not None:
        notes.broken(f"{who} goes on from memory and resumed from {a.resumed_from.path}")
    if a.origins or a.joined or a.memory == SURVIVORS:
        _check_members(case, a, notes)


def _check_members(case: Case, a: Attempt, notes: FindingBuilder) -> None:
    who, config = f"attempt {a.attempt}", case.run.stored.config
    before = case.attempt(a.attempt - 1)
    live = survivors_stay(config)
    if before is None or before.session != a.session or not live:
        notes.broken(
            f"{who} took over ranks, "
            + (
                "its configuration keeps none"
                if before and not live
                else "nobody was there to be taken over"
            )
        )
        return
    if (
        len(a.origins) != a.world_size
        or not set(a.joined) <= set(range(a.world_size))
        or len(set(a.joined)) != len(a.joined)
    ):
        notes.broken(
            f"{who} of {plural(a.world_size, 'rank')} names the origins of {len(a.origins)}, and"
            f" {list(a.joined)} as those that joined"
        )
        return
    _check_origins(a, before, notes)
    if a.joined and not config.supervision.spares:
        notes.broken(f"{who}: ranks {list(a.joined)} joined, the configuration has no spares")
    if a.memory != SURVIVORS:
        return
    if (
        before.outcome != SURVIVED
        or a.continues != before.attempt
        or not recovery_of(config).from_memory
    ):
        notes.broken(
            f"{who} goes on with the state of attempt {a.continues}, attempt {before.attempt}"
            f" {before.outcome} under {config.recovery.name}"
        )


def _check_origins(a: Attempt, before: Attempt, notes: FindingBuilder) -> None:
    """Survivors come from different ranks; new ranks do not take the place of a living one."""
    who, own = f"attempt {a.attempt}", surviving_ranks(a)
    places = [origin for rank, origin in enumerate(a.origins) if rank in a.joined and origin != -1]
    if not own:
        notes.broken(f"{who} took over ranks, and all of its own are newcomers")
    if len(set(own)) != len(own) or not set(own) <= set(range(before.world_size)):
        notes.broken(
            f"{who} says that its ranks were {list(own)} of the {plural(before.world_size, 'rank')}"
            f" of attempt {before.attempt}"
        )
    if (
        len(set(places)) != len(places)
        or set(places) & set(own)
        or not set(places) <= set(range(before.world_size))
    ):
        notes.broken(
            f"{who} says that newcomers took the places {places}, and that ranks {list(own)} stayed"
        )


def check_recalled(case: Case, a: Attempt, notes: FindingBuilder) -> None:
    """The memory itself is gone; its content is checked by its hash in launch.json and, if ranks
    log their state, by the state digest.
    """
    who, order = f"attempt {a.attempt}", case.run.logs(a.attempt).order
    if order and order.snapshot_sha256 != a.snapshot_sha256:
        notes.broken(
            f"{who} was ordered to load a snapshot that hashes to {order.snapshot_sha256[:8]},"
            f" supervisor.json says {a.snapshot_sha256[:8]}"
        )
    _check_newest(case, a, notes)
    if a.memory != SNAPSHOT:
        if a.snapshot_sha256 or a.snapshot_state:
            notes.broken(f"{who} says what a snapshot held, and went on from none")
        return
    if not strategy_of(case.run.stored.config).snapshots:
        notes.broken(f"{who} went on from a snapshot in memory, its configuration takes none")
    if recorded_by_rank(case.run.stored.config) and not (
        is_digest(a.snapshot_sha256) and is_digest(a.snapshot_state)
    ):
        notes.broken(
            f"{who} went on from a snapshot, and supervisor.json lacks a digest of what it held"
        )
    before = case.attempt(a.continues) if a.continues is not None else None
    if before is None:
        return
    if before.session != a.session:
        notes.broken(
            f"{who} went on from a snapshot of attempt {before.attempt}, which went down with its"
            " supervisor"
        )
    _check_state(case, a, before, notes)


def _check_newest(case: Case, a: Attempt, notes: FindingBuilder) -> None:
    """The attempt resumed from the newest snapshot of the previous attempt, or rejected it on
    record, or from something durable as new.

    Rank 0 closes the span of a snapshot once it is complete; the next one overwrites the older of
    two, so this one stays.
    """
    before = case.attempt(a.attempt - 1)
    if (
        not strategy_of(case.run.stored.config).snapshots
        or before is None
        or before.session != a.session
        or a.memory == SURVIVORS
    ):
        return
    account = case.spans.of(before.attempt, 0)
    taken = [
        span.global_step
        for span in (account.spans if account else ())
        if span.category == "snapshot"
    ]
    config, lines = case.run.stored.config, case.run.logs(before.attempt).ranks.get(0)
    passed = steps_of(lines)[:-1] if lines and account else []
    due = {step for step in passed if step % config.checkpoint.memory_every == 0}
    if untaken := sorted(due - set(taken)):
        notes.broken(
            f"attempt {before.attempt} went past step {untaken[0]}, and no span is of its snapshot"
        )
    newest = max((step for step in taken if step > before.resumed_from_step), default=0)
    refused = {(each.attempt, each.global_step) for each in a.forgone}
    if newest > a.resumed_from_step and (before.attempt, newest) not in refused:
        text = (
            f"attempt {before.attempt} had taken a snapshot of step {newest}, and no refusal of it"
            " is on record"
        )
        notes.broken(f"attempt {a.attempt} went on after step {a.resumed_from_step}: {text}")


def _check_state(case: Case, a: Attempt, before: Attempt, notes: FindingBuilder) -> None:
    """Every rank had logged the step of the snapshot, and its state is the one that rank 0 logged.

    Other ranks may differ: between two steps each rank has its own running statistics of BatchNorm.
    """
    step = a.resumed_from_step
    who = f"attempt {a.attempt} went on from a snapshot of step {step} of attempt {before.attempt}"
    logs = case.run.logs(before.attempt).ranks
    lines = {
        rank: line
        for rank, found in logs.items()
        for line in found.events
        if line.global_step == step
    }
    if missing := [rank for rank in range(before.world_size) if rank not in lines]:
        notes.missing(f"{who}, and rank {missing[0]} has no line of it")
    if 0 in lines and lines[0].state_digest not in (None, a.snapshot_state):
        notes.broken(f"{who} that holds another state than rank 0 logged")
