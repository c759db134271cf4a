"""Exactly once (`history.exactly_once`) by the ranks' logs: every sample of an epoch, or it is
recorded as lost.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, pairwise

from ecrl_cli.config.elastic import fits, owned, share
from ecrl_cli.data.order import epoch_order, ids_hash, position, shard, steps_per_epoch, window
from ecrl_cli.errors import plural
from ecrl_cli.history.exactly_once import SampleCounts, counted, in_order
from ecrl_cli.history.lineage import Segment, covered, lines_of, seen_before, steps_of
from ecrl_cli.history.load import RunRecords
from ecrl_cli.history.membership import lost_samples
from ecrl_cli.records.columns import rank_columns
from ecrl_cli.records.events import RankLine
from ecrl_cli.verify.line_columns import of_one_attempt, samples_as_due, world_sizes_of
from ecrl_cli.verify.survivor_reports import Line, survivals
from ecrl_cli.verify.verdict import Finding, FindingBuilder
from ecrl_cli.verify.verification_input import Case, every_line

PROMISE = "exactly-once"
_AHEAD = 64  # minimum number of steps planned beyond the last one, within the epoch


def exactly_once(case: Case) -> Finding:
    """Check each step and epoch; missing logs make the promise unknown, a gap within a log or a
    wrong shard breaks it.
    """
    notes = FindingBuilder(PROMISE)
    if case.run.dataset is None:
        notes.missing(
            "dataset.json is missing: the size of the data set decides what each step consumes"
        )
        return notes.finding("")
    plan = _plan(case, case.run.dataset.size)
    for gap in case.path.gaps:
        (notes.broken if case.run.supervisor else notes.missing)(gap)
    _check_logs(case, notes)
    excused = survivals(case, notes)
    for segment in case.path.segments:
        _check_segment(case, segment, excused, notes)
    _check_contents(case, plan, notes)
    consumed = _check_epochs(case, plan, excused, notes)
    steps = sum(len(s.steps()) for s in case.path.segments)
    kept = (
        f"{plural(steps, 'step')}, {plural(consumed, 'sample')} in the committed sequence:"
        " duplicates 0, missing 0, extra 0"
    )
    return notes.finding(kept + _accounts(case, consumed), checked=steps > 0)


def _plan(case: Case, size: int) -> Schedule:
    """The samples that every step must consume, as far as the run got; `size`: of the data set."""
    config, logs = (
        case.run.stored.config,
        [lines for a in case.run.attempt_logs for lines in a.ranks.values()],
    )
    world_sizes = {a.world_size for a in case.attempts}.union(*map(world_sizes_of, logs))
    furthest = max([case.path.last_step, *(max(steps_of(lines), default=0) for lines in logs)])
    return Schedule(
        case.run,
        size,
        steps_per_epoch(size, config.global_batch),
        min(furthest, config.target_steps),
        tuple(sorted(w for w in world_sizes if w > 0 and fits(config, w))),
    )


def _accounts(case: Case, consumed: int) -> str:
    """For a run continued by survivors: how many samples were applied, replayed, or recorded as
    lost.
    """
    if all(a.continues is None for a in case.attempts):
        return ""
    lost = lost_samples(case.run, case.path)
    before, replayed = seen_before(case.run), 0
    for attempt, _, line in every_line(case.run):
        replayed += line.sample_ids_count if line.global_step <= before.get(attempt, 0) else 0
    return (
        f"; {consumed - lost} applied to every layer, {replayed} replayed, {lost} on record as lost"
    )


def _check_logs(case: Case, notes: FindingBuilder) -> None:
    """Every log is consecutive from the step that its attempt began with, and holds only lines of
    its attempt and rank.
    """
    for a in case.attempts:
        for rank, lines in case.run.logs(a.attempt).ranks.items():
            where = f"attempt {a.attempt} rank {rank}"
            if rank >= a.world_size:
                notes.broken(f"{where} left a log, the attempt had {plural(a.world_size, 'rank')}")
            columns = rank_columns(lines)
            if columns and of_one_attempt(columns, a, rank):
                continue
            steps = [line.global_step for line in lines.events]
            if steps and steps[0] != a.resumed_from_step + 1:
                notes.broken(
                    f"{where} began with step {steps[0]}, the attempt resumed after step"
                    f" {a.resumed_from_step}"
                )
            for before, after in pairwise(steps):
                if after != before + 1:
                    notes.broken(
                        f"{where} logged step {after} after step {before}: {_kind(before, after)}"
                    )
            for line in lines.events:
                if (line.attempt, line.rank, line.world_size) != (a.attempt, rank, a.world_size):
                    notes.broken(
                        f"{where} holds a line of attempt {line.attempt} rank {line.rank} of"
                        f" {line.world_size} (step {line.global_step})"
                    )


def _kind(before: int, after: int) -> str:
    if after == before:
        return f"step {after} is repeated"
    return "the cursor went back" if after < before else f"step {before + 1} is dropped"


def _check_segment(
    case: Case, segment: Segment, excused: frozenset[Line], notes: FindingBuilder
) -> None:
    """Each committed step has exactly one line per rank; survivor reports may stand in for the line
    of a rank that died in it.
    """
    if covered(case.run, segment) is not None:
        return
    logged = lines_of(case.run, segment)
    logs = case.run.logs(segment.attempt).ranks
    for rank in range(segment.world_size):
        absent = [
            step
            for step in segment.steps()
            if (step, rank) not in logged and (segment.attempt, rank, step) not in excused
        ]
        if not absent:
            continue
        which = f"steps {absent[0]} to {absent[-1]}" if len(absent) > 1 else f"step {absent[0]}"
        where = f"{which} of attempt {segment.attempt} rank {rank}"
        if rank not in logs or not logs[rank].events:
            notes.missing(f"the log of {where} is not there")
        elif logs[rank].events[-1].global_step < absent[0]:
            notes.missing(
                f"the log ends before {where}"
                + (", its last line is torn" if logs[rank].torn else "")
            )
        else:
            notes.broken(f"{where} left no line: missing")
    for (step, rank), lines in logged.items():
        if len(lines) > 1:
            notes.broken(
                f"step {step} was logged {len(lines)} times by attempt {segment.attempt} rank"
                f" {rank}: duplicates"
            )


def _check_contents(case: Case, plan: Schedule, notes: FindingBuilder) -> None:
    """Every line, replayed ones too, has the right position in the epoch, number of samples and
    shard.
    """
    for attempt, rank, line in () if plan.followed else every_line(case.run):
        who = f"step {line.global_step} rank {rank} (attempt {attempt})"
        if not 1 <= line.global_step <= case.run.stored.config.target_steps:
            notes.broken(
                f"{who} does not exist: the run has steps 1 to"
                f" {case.run.stored.config.target_steps}"
            )
            continue
        expected = plan.epoch_and_cursor(line.global_step)
        if (line.epoch, line.cursor_step) != expected:
            notes.broken(
                f"{who} is at epoch {line.epoch} cursor {line.cursor_step}, the step is epoch"
                f" {expected[0]} cursor {expected[1]}"
            )
        place = BatchPosition(line.global_step, line.rank, line.world_size)
        if line.world_size and line.sample_ids_count != (due := shard_size(case, place)):
            notes.broken(
                f"{who} consumed {plural(line.sample_ids_count, 'sample')}, its shard has {due}"
            )
        if line.world_size and (wrong := _wrong_losses(case, line)):
            notes.broken(f"{who} {wrong}")
        if not in_order(line.sample_ids_hash, plan.hashes.get(place)):
            notes.broken(f"{who} logged {_whose(line, plan)}")


def shard_size(case: Case, place: BatchPosition) -> int:
    """How many samples of a batch the rank owns."""
    config = case.run.stored.config
    return len(share(config.global_batch, place.rank, place.world_size, config.elastic.replicas))


def _wrong_losses(case: Case, line: RankLine) -> str:
    """Error in the form of a line's loss, which is one number, or with replicas one for each that
    the rank owns; empty if correct.
    """
    replicas = case.run.stored.config.elastic.replicas
    due = len(owned(replicas, line.rank, line.world_size))
    if not replicas:
        return (
            "logged the losses of replicas, the run has none"
            if isinstance(line.loss, tuple)
            else ""
        )
    there = len(line.loss) if isinstance(line.loss, tuple) else 0
    return "" if there == due else f"logged the losses of {plural(there, 'replica')}, it owns {due}"


def _whose(line: RankLine, plan: Schedule) -> str:
    places = plan.places.get(line.sample_ids_hash)
    if not places:
        return "samples of no shard of this run: extra"
    nearest = min(places, key=lambda p: (abs(p.step - line.global_step), p.rank))
    return f"the shard of step {nearest.step} rank {nearest.rank}"


def epoch_counts(case: Case) -> dict[int, SampleCounts]:
    """The counts of each epoch in the committed sequence, by the logs; none where the size of the
    data set is not known.
    """
    if case.run.dataset is None:
        return {}
    excused = survivals(case, FindingBuilder(PROMISE))
    return _counted(case, _plan(case, case.run.dataset.size), excused)


def _check_epochs(
    case: Case, plan: Schedule, excused: frozenset[Line], notes: FindingBuilder
) -> int:
    """Judges each epoch by its counts; returns how many samples were seen."""
    counts = _counted(case, plan, excused)
    for epoch, count in counts.items():
        if count.too_often:
            notes.broken(
                f"epoch {epoch}: duplicates {count.duplicates}, missing {count.missing},"
                f" extra {count.extra}"
            )
        elif count.missing:
            notes.missing(
                f"epoch {epoch}: {plural(count.missing, 'sample is', 'samples are')} not on record"
            )
    return sum(count.consumed for count in counts.values())


def _counted(case: Case, plan: Schedule, excused: frozenset[Line]) -> dict[int, SampleCounts]:
    """Counts samples per epoch from the logged hashes, and from survivor reports that stand in for
    a line.
    """
    if (whole := _counted_whole(case, plan, excused)) is not None:
        return whole
    seen: Counter[BatchPosition] = Counter()
    scheduled: dict[BatchPosition, int] = {}
    of_no_shard: Counter[int] = Counter()
    for segment in case.path.segments:
        for step in segment.steps():
            for rank in range(segment.world_size):
                place = BatchPosition(step, rank, segment.world_size)
                scheduled[place] = 1
                seen[place] += (segment.attempt, rank, step) in excused
        for line in chain.from_iterable(lines_of(case.run, segment).values()):
            if logged := _observed(line, plan):
                seen[logged] += 1
            else:
                of_no_shard[line.epoch] += line.sample_ids_count
    by_epoch: dict[int, list[BatchPosition]] = {epoch: [] for epoch in of_no_shard}
    for place in scheduled | seen:
        by_epoch.setdefault(plan.epoch_and_cursor(place.step)[0], []).append(place)
    counts = {}
    for epoch, places in sorted(by_epoch.items()):
        consumed, wanted = ({p: of[p] for p in places if p in of} for of in (seen, scheduled))
        count = counted(consumed, wanted, partial(shard_size, case))
        counts[epoch] = replace(count, extra=count.extra + of_no_shard[epoch])
    return counts


def _counted_whole(
    case: Case, plan: Schedule, excused: frozenset[Line]
) -> dict[int, SampleCounts] | None:
    """The counts of a run that has all committed lines once, each with the samples due, so that
    only steps are counted; None if it is not one.
    """
    segments = case.path.segments
    if (
        excused
        or not case.path.whole
        or not plan.followed
        or any(covered(case.run, segment) is None for segment in segments)
    ):
        return None
    steps = Counter[int]()
    for segment in segments:
        while segment.steps():
            epoch = plan.epoch_and_cursor(segment.after + 1)[0]
            end = min(segment.until, (epoch + 1) * plan.steps_per_epoch)
            steps[epoch] += end - segment.after
            segment = replace(segment, after=end)
    batch = case.run.stored.config.global_batch
    return {epoch: SampleCounts(count * batch) for epoch, count in sorted(steps.items())}


def _observed(line: RankLine, plan: Schedule) -> BatchPosition | None:
    """The shard that the logged hash belongs to: its own position if the hash fits, else the first
    one of the same epoch, else any.
    """
    places = plan.places.get(line.sample_ids_hash, ())
    own = [
        p
        for p in places
        if (p.step, p.rank, p.world_size) == (line.global_step, line.rank, line.world_size)
    ]
    same_epoch = [
        p
        for p in places
        if plan.epoch_and_cursor(p.step)[0] == line.epoch and p.world_size == line.world_size
    ]
    return next(iter([*own, *same_epoch, *places]), None)


@dataclass(frozen=True)
class BatchPosition:
    """The shard that `rank` of `world_size` owns of the batch of `step`."""

    step: int
    rank: int
    world_size: int


@dataclass(frozen=True)
class Schedule:
    """The samples that each step consumes, up to the end of the epoch of `last_step` (of a very
    long epoch, only the next steps), for every world size. `size`: of the data set.
    """

    records: RunRecords
    size: int
    steps_per_epoch: int
    last_step: int
    world_sizes: tuple[int, ...]

    def epoch_and_cursor(self, step: int) -> tuple[int, int]:
        return position(step, self.steps_per_epoch)

    @cached_property
    def followed(self) -> bool:
        """Whether every line of the run tells of the samples that it is to consume. False also
        where that can be seen line by line only.
        """
        return samples_as_due(self.records, self.size)

    @cached_property
    def hashes(self) -> dict[BatchPosition, str]:
        """By position, the hash of its samples."""
        config, per_epoch = self.records.stored.config, self.steps_per_epoch
        hashes: dict[BatchPosition, str] = {}
        beyond = 2 * self.last_step + _AHEAD
        for epoch in range(position(max(self.last_step, 1), per_epoch)[0] + 1):
            order = epoch_order(config.seed, epoch, self.size, config.global_batch)
            for cursor in range(min(per_epoch, beyond - epoch * per_epoch)):
                ids, step = (
                    window(order, cursor, config.global_batch),
                    epoch * per_epoch + cursor + 1,
                )
                for world_size in self.world_sizes:
                    for rank in range(world_size):
                        part = shard(ids, rank, world_size, config.elastic.replicas)
                        hashes[BatchPosition(step, rank, world_size)] = ids_hash(part)
        return hashes

    @cached_property
    def places(self) -> dict[str, tuple[BatchPosition, ...]]:
        """By hash, the positions of shards with that hash, in order of the steps."""
        places: dict[str, tuple[BatchPosition, ...]] = {}
        for place, digest in self.hashes.items():
            places[digest] = (*places.get(digest, ()), place)
        return places
