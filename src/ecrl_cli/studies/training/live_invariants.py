"""Invariants of runs in which some ranks died and others survived, read from the records
independently of `verify`.
"""

from __future__ import annotations

import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from ecrl_cli.config.elastic import fits
from ecrl_cli.config.fault_spec import STARTING
from ecrl_cli.config.recoveries import recovery_of
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.data.order import Ids, epoch_order, position, shard, steps_per_epoch, window
from ecrl_cli.failures.fault_kind import Victim, fault_kind
from ecrl_cli.failures.fault_log import read_fired
from ecrl_cli.failures.plan import read_plan
from ecrl_cli.records.events import Attempt, InjectedFault, PlannedFailure, RankLine
from ecrl_cli.records.journal import read_journal, read_json
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.survivor_records import (
    LOST,
    SURVIVED,
    SURVIVORS,
    LostSamples,
    RedoneStep,
    SurvivorReport,
)
from ecrl_cli.supervision.attempts.supervisor_record import read_record


@dataclass(frozen=True)
class FaultEffect:
    """A planned failure that was injected. `ranks`: of its attempt, that it killed; `at_step`: the
    step during or after which it happened.
    """

    planned: PlannedFailure
    fired: InjectedFault
    ranks: frozenset[int]

    @property
    def at_step(self) -> int:
        return self.fired.global_step if self.fired.at_step is None else self.fired.at_step


@dataclass(frozen=True)
class AttemptHistory:
    """One attempt. `lines`: by rank. `survivor_reports`, `lost_samples`: by rank, if written;
    durations and times are removed from the reports, as they differ between ranks.
    """

    attempt: Attempt
    lines: dict[int, tuple[RankLine, ...]]
    survivor_reports: dict[int, SurvivorReport]
    lost_samples: dict[int, tuple[LostSamples, ...]]
    faults: tuple[FaultEffect, ...]

    @property
    def dead(self) -> frozenset[int]:
        return frozenset(rank for fault in self.faults for rank in fault.ranks)

    @property
    def redone(self) -> tuple[RedoneStep, ...]:
        """The redone steps of its first survivor report."""
        return next((each.redone for each in self.survivor_reports.values()), ())

    @property
    def layers(self) -> tuple[tuple[str, ...], ...]:
        return next((each.layers for each in self.survivor_reports.values() if each.layers), ())


@dataclass(frozen=True)
class RunHistory:
    config: RunConfig
    size: int  # samples
    attempts: tuple[AttemptHistory, ...]

    @cached_property
    def went_on(self) -> tuple[AttemptHistory, ...]:
        """Attempts from which later attempts took over processes."""
        return tuple(
            self.attempts[later.attempt.continues]
            for later in self.attempts
            if later.attempt.continues is not None
        )

    def shard(self, global_step: int, rank: int, world_size: int) -> Ids:
        epoch, step = position(global_step, steps_per_epoch(self.size, self.config.global_batch))
        order = epoch_order(self.config.seed, epoch, self.size, self.config.global_batch)
        return shard(window(order, step, self.config.global_batch), rank, world_size)


def read_history(layout: RunLayout, config: RunConfig) -> RunHistory:
    planned = read_plan(layout)
    size = int(read_json(layout.dataset)["size"])
    effects = tuple(effect(config, planned[each.index], each) for each in read_fired(layout))
    return RunHistory(
        config,
        size,
        tuple(_attempt(layout, attempt, effects) for attempt in read_record(layout).attempts),
    )


def _attempt(
    layout: RunLayout, attempt: Attempt, effects: tuple[FaultEffect, ...]
) -> AttemptHistory:
    folder, ranks = layout.attempt(attempt.attempt), range(attempt.world_size)
    faults = tuple(each for each in effects if each.fired.attempt == attempt.attempt)
    reports = {
        rank: read_journal(folder.survivor_report(rank), SurvivorReport).events for rank in ranks
    }
    return AttemptHistory(
        attempt,
        {rank: read_journal(folder.rank(rank), RankLine).events for rank in ranks},
        {rank: _timeless(report[-1]) for rank, report in reports.items() if report},
        {
            rank: read_journal(folder.lost_samples(rank), LostSamples).events
            for rank in ranks
            if folder.lost_samples(rank).exists()
        },
        faults,
    )


def effect(config: RunConfig, planned: PlannedFailure, fired: InjectedFault) -> FaultEffect:
    """A killed writer is rank 0 where no background writer writes, and else no rank."""
    if fault_kind(planned.kind).victim is Victim.WRITER:
        return FaultEffect(
            planned, fired, frozenset((0,)) if strategy_of(config).writes_in_rank else frozenset()
        )
    return FaultEffect(planned, fired, frozenset((planned.rank, *planned.others)))


def _timeless(report: SurvivorReport) -> SurvivorReport:
    return replace(
        report, at=0.0, time=0.0, redone=tuple(replace(each, seconds=0.0) for each in report.redone)
    )


def contributors(
    redone: tuple[RedoneStep, ...], global_step: int, bucket: int, world_size: int
) -> tuple[int, ...]:
    """The ranks whose gradients `bucket` holds in the end, according to the survivor reports."""
    found = tuple(range(world_size))
    for each in redone:
        if each.global_step == global_step and each.first <= bucket:
            found = each.left
    return found


Influence = tuple[int, int, str]  # step, sample, layer

SURE = 0.9  # share of the gradients: a rank that dies before has certainly not sent its last bucket


def apart(history: RunHistory) -> str:
    """Surviving ranks are bit for bit equal: in every step, and in their survivor reports."""
    for logs in history.attempts:
        if wrong := _lines_apart(logs) or _reports_differ(logs) or _unlike_its_lines(history, logs):
            return f"attempt {logs.attempt.attempt}: {wrong}"
    return _silent(history)


def _lines_apart(logs: AttemptHistory) -> str:
    digests: dict[int, set[str | None]] = {}
    for lines in logs.lines.values():
        for line in lines:
            digests.setdefault(line.global_step, set()).add(line.state_digest)
    several = [step for step, found in sorted(digests.items()) if len(found) > 1]
    return f"the ranks differ after step {several[0]}" if several else ""


def _reports_differ(logs: AttemptHistory) -> str:
    reports = list(logs.survivor_reports.items())
    for rank, other in reports[1:]:
        first_rank, first = reports[0]
        for name in ("global_step", "alive", "redone", "layers", "state_digest"):
            one, another = getattr(first, name), getattr(other, name)
            if one != another:
                ranks = f"ranks {first_rank} and {rank}"
                return f"{ranks} say otherwise of {name}: {one}, {another}"[:300]
    return ""


def _unlike_its_lines(history: RunHistory, logs: AttemptHistory) -> str:
    """A reported state must equal the one that the rank logged after that step in this attempt, or
    else the one logged in an earlier attempt.
    """
    for rank, report in logs.survivor_reports.items():
        logged = [
            line.state_digest
            for line in logs.lines[rank]
            if line.global_step == report.finished_step
        ]
        logged = logged or _logged_before(history, logs, report)
        # Otherwise it resumes from a checkpoint and its state is not used.
        goes_on = bool(report.state_digest) or recovery_of(history.config).from_memory
        if goes_on and logged and report.state_digest not in logged:
            differs = f"{report.state_digest[:12]}, and logged {str(logged[-1])[:12]}"
            return (
                f"rank {rank} reports that its state after step {report.finished_step} is {differs}"
            )
        if (report.attempt, report.rank) != (logs.attempt.attempt, rank):
            return f"rank {rank} speaks of rank {report.rank} in attempt {report.attempt}"
    return ""


def _logged_before(
    history: RunHistory, logs: AttemptHistory, report: SurvivorReport
) -> list[str | None]:
    before = (each for each in history.attempts if each.attempt.attempt < logs.attempt.attempt)
    return [
        line.state_digest
        for each in before
        for lines in each.lines.values()
        for line in lines
        if line.global_step == report.finished_step
    ]


def _silent(history: RunHistory) -> str:
    """A rank that continues with its memory must have left a survivor report."""
    for later in history.attempts:
        attempt = later.attempt
        if attempt.continues is None or attempt.memory != SURVIVORS:
            continue
        before = history.attempts[attempt.continues]
        stayed = [
            origin for rank, origin in enumerate(attempt.origins) if rank not in attempt.joined
        ]
        if silent := [rank for rank in stayed if rank not in before.survivor_reports]:
            return (
                f"attempt {before.attempt.attempt}: rank {silent[0]} went on and left no survivor"
                " report"
            )
        if dead := [rank for rank in stayed if rank in before.dead]:
            return f"attempt {before.attempt.attempt}: rank {dead[0]} was killed and went on"
        steps = {before.survivor_reports[rank].global_step for rank in stayed}
        if steps != {attempt.resumed_from_step}:
            return (
                f"attempt {attempt.attempt} goes on after step {attempt.resumed_from_step}, its"
                f" ranks left after {sorted(steps)}"
            )
    return ""


def restarted(history: RunHistory) -> str:
    """While enough ranks survive with the state in memory, the run continues in place and does not
    restart.
    """
    if not recovery_of(history.config).from_memory:
        return ""
    for logs, later in zip(history.attempts, history.attempts[1:], strict=False):
        if later.attempt.memory != SURVIVORS and not _excused(history, logs):
            return (
                f"attempt {logs.attempt.attempt}: ranks {sorted(_left(logs))} were left, and all"
                f" began anew ({logs.attempt.outcome})"
            )
        if later.attempt.memory == SURVIVORS and logs.attempt.outcome != SURVIVED:
            return (
                f"attempt {logs.attempt.attempt}: ended as {logs.attempt.outcome}, and its ranks"
                " went on"
            )
    return ""


def _left(logs: AttemptHistory) -> set[int]:
    return set(range(logs.attempt.world_size)) - logs.dead


def _excused(history: RunHistory, logs: AttemptHistory) -> bool:
    """A restart is justified: no surviving rank holds the state, or too few survive to continue."""
    left, spares = _left(logs), _spares(history, logs)
    holders = (
        left - set(logs.attempt.joined)
        if any(fault.planned.moment in STARTING for fault in logs.faults)
        else left
    )
    if logs.attempt.memory != SURVIVORS and not any(logs.lines.values()):
        return True  # no rank had any state yet
    if not holders:
        return True
    if recovery_of(history.config).shrinks:
        return (
            not fits(history.config, len(left)) and len(left) + spares < history.config.world_size
        )
    return len(left) + spares < history.config.world_size


def _spares(history: RunHistory, logs: AttemptHistory) -> int:
    """Minimum number of ready spares: the replacement of a used spare needs time to get ready."""
    since = [each for each in history.attempts if each.attempt.attempt <= logs.attempt.attempt]
    return history.config.supervision.spares - sum(len(each.attempt.joined) for each in since)


def lost_samples(history: RunHistory) -> str:
    """The lost-sample records are complete and correct; a recovery that loses none has none, and no
    step redone without the dead.
    """
    lossy = recovery_of(history.config).loses_samples
    for logs in history.attempts:
        number = logs.attempt.attempt
        if not lossy and (any(logs.lost_samples.values()) or logs.redone):
            return f"attempt {number}: something was lost, with {history.config.recovery.name}"
        if len({_influences(lines) for lines in logs.lost_samples.values()}) > 1:
            return f"attempt {number}: the survivors' lost-samples records differ"
        if lossy and logs.survivor_reports and (wrong := _wrong(history, logs)):
            return f"attempt {number}: {wrong}"
    return ""


def _wrong(history: RunHistory, logs: AttemptHistory) -> str:
    found = next((_influences(lines) for lines in logs.lost_samples.values()), frozenset())
    due = _due(history, logs)
    if found != due:
        step, sample, layer = min(found ^ due)
        place = (
            "is on record as lost and was not"
            if (step, sample, layer) in found
            else "was lost and is not on record"
        )
        return f"step {step}: sample {sample} on {layer} {place} ({len(found ^ due)} like it)"
    named = {(step, sample) for step, sample, _ in found}
    for fault in filter(_surely_lost, logs.faults):
        gone = {
            (fault.at_step, int(sample))
            for rank in fault.ranks
            for sample in history.shard(fault.at_step, rank, logs.attempt.world_size)
        }
        if missing := gone - named:
            return (
                f"step {fault.at_step}: {len(missing)} samples of ranks {sorted(fault.ranks)}"
                " cannot have been applied, and are not on record as lost"
            )
    return ""


def _surely_lost(fault: FaultEffect) -> bool:
    """Whether the killed rank had certainly not sent its last bucket."""
    planned = fault.planned
    return planned.moment == "forward" or (planned.moment == "backward" and planned.share <= SURE)


def _influences(lines: tuple[LostSamples, ...]) -> frozenset[Influence]:
    return frozenset(
        (line.global_step, sample, layer)
        for line in lines
        if line.effect == LOST
        for sample in line.samples
        for layer in line.layers
    )


def _due(history: RunHistory, logs: AttemptHistory) -> frozenset[Influence]:
    """The samples lost according to the survivor reports: for each bucket those of the ranks whose
    gradients it does not hold.
    """
    world, found = logs.attempt.world_size, set[Influence]()
    for step in {each.global_step for each in logs.redone}:
        for bucket, layers in enumerate(logs.layers):
            absent = set(range(world)) - set(contributors(logs.redone, step, bucket, world))
            found |= {
                (step, int(sample), layer)
                for rank in absent
                for sample in history.shard(step, rank, world)
                for layer in layers
            }
    return frozenset(found)


def sockets(layout: RunLayout) -> list[str]:
    """Sockets that the run has left behind."""
    return [path.name for path in layout.root.rglob("*") if stat.S_ISSOCK(path.lstat().st_mode)]


# By outcome, in the order in which they are checked.
LOOKS: dict[str, Callable[[RunHistory], str]] = {
    "apart": apart,
    "restarted": restarted,
    "ledger": lost_samples,
}
