"""Reads a run's recoveries from its records, independently of `verify`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from ecrl_cli.config.schema import RunConfig
from ecrl_cli.data.order import Ids, epoch_order, position, shard, steps_per_epoch, window
from ecrl_cli.failures.fault_kind import Victim
from ecrl_cli.failures.fault_log import read_fired
from ecrl_cli.failures.plan import read_plan
from ecrl_cli.failures.registry import fault_kind
from ecrl_cli.records.events import Attempt, InjectedFault, PlannedFailure, RankLine
from ecrl_cli.records.journal import read_journal, read_json
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.survivor_records import LostSamples, RedoneStep, SurvivorReport
from ecrl_cli.supervision.attempts.supervisor_record import read_record


@dataclass(frozen=True)
class Blow:
    """A planned failure that was injected. `ranks`: of its attempt, that it killed; `at_step`: the step during or after which it happened."""

    planned: PlannedFailure
    fired: InjectedFault
    ranks: frozenset[int]

    @property
    def at_step(self) -> int:
        return self.fired.global_step if self.fired.at_step is None else self.fired.at_step


@dataclass(frozen=True)
class AttemptHistory:
    """One attempt. `lines`: by rank. `survivor_reports`, `lost_samples`: by rank, if written; durations and times are removed from the
    reports, as they differ between ranks."""

    attempt: Attempt
    lines: dict[int, tuple[RankLine, ...]]
    survivor_reports: dict[int, SurvivorReport]
    lost_samples: dict[int, tuple[LostSamples, ...]]
    blows: tuple[Blow, ...]

    @property
    def dead(self) -> frozenset[int]:
        return frozenset(rank for blow in self.blows for rank in blow.ranks)

    @property
    def redone(self) -> tuple[RedoneStep, ...]:
        """The redone steps of its first survivor report."""
        return next((each.redone for each in self.survivor_reports.values()), ())

    @property
    def layers(self) -> tuple[tuple[str, ...], ...]:
        return next((each.layers for each in self.survivor_reports.values() if each.layers), ())


@dataclass(frozen=True)
class Story:
    config: RunConfig
    size: int  # samples
    chapters: tuple[AttemptHistory, ...]

    @cached_property
    def went_on(self) -> tuple[AttemptHistory, ...]:
        """Attempts from which later attempts took over processes."""
        return tuple(self.chapters[later.attempt.continues] for later in self.chapters if later.attempt.continues is not None)

    def shard(self, global_step: int, rank: int, world_size: int) -> Ids:
        epoch, step = position(global_step, steps_per_epoch(self.size, self.config.global_batch))
        order = epoch_order(self.config.seed, epoch, self.size, self.config.global_batch)
        return shard(window(order, step, self.config.global_batch), rank, world_size)


def read_story(layout: RunLayout, config: RunConfig) -> Story:
    planned, fired = read_plan(layout), read_fired(layout)
    size = int(read_json(layout.dataset)["size"])
    return Story(config, size, tuple(_chapter(layout, attempt, planned, fired) for attempt in read_record(layout).attempts))


def _chapter(layout: RunLayout, attempt: Attempt, planned: tuple[PlannedFailure, ...], fired: tuple[InjectedFault, ...]) -> AttemptHistory:
    logs, ranks = layout.attempt(attempt.attempt), range(attempt.world_size)
    blows = tuple(_blow(planned[each.index], each) for each in fired if each.attempt == attempt.attempt)
    spoken = {rank: read_journal(logs.survivor_report(rank), SurvivorReport).events for rank in ranks}
    return AttemptHistory(
        attempt,
        {rank: read_journal(logs.rank(rank), RankLine).events for rank in ranks},
        {rank: _timeless(said[-1]) for rank, said in spoken.items() if said},
        {rank: read_journal(logs.lost_samples(rank), LostSamples).events for rank in ranks if logs.lost_samples(rank).exists()},
        blows,
    )


def _blow(planned: PlannedFailure, fired: InjectedFault) -> Blow:
    ranks = frozenset() if fault_kind(planned.kind).victim is Victim.WRITER else frozenset((planned.rank, *planned.others))
    return Blow(planned, fired, ranks)


def _timeless(said: SurvivorReport) -> SurvivorReport:
    return replace(said, at=0.0, time=0.0, redone=tuple(replace(each, seconds=0.0) for each in said.redone))


def contributors(redone: tuple[RedoneStep, ...], global_step: int, bucket: int, world_size: int) -> tuple[int, ...]:
    """The ranks whose gradients `bucket` holds in the end, according to the survivor reports."""
    found = tuple(range(world_size))
    for each in redone:
        if each.global_step == global_step and each.first <= bucket:
            found = each.left
    return found
