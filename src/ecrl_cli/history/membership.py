"""Attempts continued by surviving ranks, and the samples that the committed sequence lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ecrl_cli.config.recoveries import recovery_of
from ecrl_cli.history.lineage import Lineage, ancestry
from ecrl_cli.history.load import RunRecords
from ecrl_cli.records.events import Attempt
from ecrl_cli.records.survivor_records import LOST, SURVIVED, SURVIVORS, LostSamples

History = tuple[tuple[int, ...], ...]


def successor(records: RunRecords, attempt: int) -> Attempt | None:
    """The attempt directly after `attempt`."""
    return records.successors.get(attempt)


def surviving_ranks(a: Attempt) -> tuple[int, ...]:
    """The ranks that `a`'s processes had in the previous attempt; empty if every process was
    started for `a`.
    """
    return tuple(origin for rank, origin in enumerate(a.origins) if rank not in a.joined)


def continuing_ranks(records: RunRecords, attempt: int) -> tuple[int, ...]:
    """The ranks of `attempt` that continue in the next attempt, possibly under other numbers."""
    after = successor(records, attempt)
    return surviving_ranks(after) if after else ()


def was_stopped(attempts: Sequence[Attempt], a: Attempt) -> bool:
    """Whether `a` ended by a stop request or completed, or its survivors did."""
    survived = {a.attempt} if a.outcome == SURVIVED else set[int]()
    ends = [a.outcome]
    # only a later one goes on with it, whatever a stranger's record says
    for each in sorted(attempts, key=lambda each: each.attempt):
        if each.attempt > a.attempt and each.continues in survived:
            ends.append(each.outcome)
            survived |= {each.attempt} if each.outcome == SURVIVED else set()
    return not {"stopped", "completed"}.isdisjoint(ends)


def lost_lines(records: RunRecords, path: Lineage) -> tuple[tuple[int, LostSamples], ...]:
    """(attempt, line) of every lost-sample line with effect `lost` for the steps of `path`."""
    return tuple(
        (segment.attempt, line)
        for segment in path.segments
        for line in records.logs(segment.attempt).lost_samples
        if line.effect == LOST and segment.after < line.global_step <= segment.until
    )


def lost_samples(records: RunRecords, path: Lineage) -> int:
    """How many samples of `path` have no influence on at least one layer; a sample on several lines
    of a step counts once.
    """
    by_step: dict[int, Counter[int]] = {}
    for _, line in lost_lines(records, path):
        by_step[line.global_step] = by_step.get(line.global_step, Counter()) | Counter(line.samples)
    return sum(samples.total() for samples in by_step.values())


def first_loss(records: RunRecords, path: Lineage) -> int | None:
    """The first step of `path` whose update lacks a sample of its mini-batch."""
    return min((line.global_step for _, line in lost_lines(records, path)), default=None)


def survivals(records: RunRecords) -> int:
    """How many attempts continued from the memory of surviving ranks."""
    return sum(a.memory == SURVIVORS for a in records.attempts)


def given_up(records: RunRecords, attempt: int) -> int:
    """How many steps of `attempt` were interrupted by a death and discarded, to be redone from
    their beginning: 0 or 1.
    """
    logs, finished = records.logs(attempt), recovery_of(records.stored.config).loses_samples
    after = successor(records, attempt)
    if finished or logs.survivor_report is None or after is None or after.memory != SURVIVORS:
        return 0
    fired_steps = [fired.at_step or 0 for fired in records.fired if fired.attempt == attempt]
    begun = max([*fired_steps, *(span.global_step for span in logs.spans.events)], default=0)
    return int(begun > logs.survivor_report.global_step)


def membership_history(records: RunRecords) -> dict[int, History]:
    """By attempt, the survival history that its steps depend on: since when how many ranks shared
    the batch (with replicas it does not matter), and what was lost before.

    Repeated steps give the same result only if these agree. Empty if no attempt continued in place.
    """
    if all(a.continues is None for a in records.attempts):
        return {}
    return {
        a.attempt: _past(records, ancestry(records, a.attempt, a.resumed_from_step), a)
        for a in records.attempts
    }


def _past(records: RunRecords, path: Lineage, a: Attempt) -> History:
    sizes: list[tuple[int, ...]] = []
    for after, size in [
        *((s.after, s.world_size) for s in path.segments if s.steps()),
        (a.resumed_from_step, a.world_size),
    ]:
        if not records.stored.config.elastic.replicas and (not sizes or sizes[-1][1] != size):
            sizes.append((after, size))
    return (
        *sizes,
        *(
            (attempt, line.global_step, len(line.samples))
            for attempt, line in lost_lines(records, path)
        ),
    )
