"""The committed sequence of steps, walked from the last attempt back through what each attempt
resumed from.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from ecrl_cli.config.elastic import owned
from ecrl_cli.history.load import RunRecords
from ecrl_cli.records.columns import FileLines, RankColumns, rank_columns
from ecrl_cli.records.evaluations import Evaluation
from ecrl_cli.records.events import Attempt, CheckpointLine, RankLine
from ecrl_cli.records.journal import Log
from ecrl_cli.records.survivor_records import SURVIVORS


@dataclass(frozen=True)
class Segment:
    """Steps `after`+1 .. `until` count as done by `attempt`. `memory`: source of its in-memory
    state, empty for a checkpoint or a start from scratch.
    """

    attempt: int
    world_size: int
    after: int
    until: int
    memory: str = ""

    def steps(self) -> range:
        return range(self.after + 1, self.until + 1)


@dataclass(frozen=True)
class Lineage:
    """The committed sequence, oldest segment first; `gaps`: descriptions of where the walk found no
    evidence.
    """

    segments: tuple[Segment, ...]
    gaps: tuple[str, ...]

    @property
    def last_step(self) -> int:
        return self.segments[-1].until if self.segments else 0

    @property
    def whole(self) -> bool:
        """Whether it covers step 1 to the last without a gap."""
        return not self.gaps

    def of(self, step: int) -> Segment | None:
        """The segment that covers `step`."""
        return next((s for s in self.segments if s.after < step <= s.until), None)

    @property
    def chained(self) -> tuple[Segment, ...]:
        """The segments whose lines share one hash chain with the last: chains restart where
        survivors continue.
        """
        begins = [
            place for place, segment in enumerate(self.segments) if segment.memory == SURVIVORS
        ]
        return self.segments[max(begins, default=0) :]


def same_sized(ours: Lineage, theirs: Lineage) -> int:
    """How many of our steps, counted from the first, had the same world size as theirs; all of them
    if none differ.
    """
    pairs = ((a, b) for a in ours.segments for b in theirs.segments if a.world_size != b.world_size)
    apart = (
        max(a.after, b.after) for a, b in pairs if max(a.after, b.after) < min(a.until, b.until)
    )
    return min(apart, default=ours.last_step)


def lineage(records: RunRecords) -> Lineage:
    """The committed sequence of the whole run."""
    if not records.attempts:
        return Lineage((), ("supervisor.json names no attempt",))
    return ancestry(records, records.attempts[-1].attempt, end_of(records, records.attempts[-1]))


def ancestry(records: RunRecords, attempt: int, until: int) -> Lineage:
    """The sequence that leads to step `until` of `attempt`."""
    by_number = {a.attempt: a for a in records.attempts}
    segments: list[Segment] = []
    gap = ""
    while not gap:
        record = by_number.get(attempt)
        if record is None:
            gap = f"attempt {attempt} is not in supervisor.json"
            break
        after = record.resumed_from_step
        if after > until:
            gap = (
                f"attempt {attempt} began at step {after}, past the step {until} it is said to have"
                " reached"
            )
        segments.append(Segment(attempt, record.world_size, after, until, record.memory))
        earlier = _before(records, record)
        if earlier is None:
            break
        gap = gap or earlier if isinstance(earlier, str) else gap
        attempt, until = (earlier, after) if isinstance(earlier, int) else (attempt, until)
    return Lineage(tuple(reversed(segments)), (gap,) if gap else ())


def began_initially(records: RunRecords, a: Attempt) -> bool:
    """Whether `a` started from the checkpoint of another run that the run begins with, as others
    start from scratch.
    """
    source, given = a.resumed_from, records.stored.config.begins_from
    return source is not None and (source.path, source.commit_sha256) == given[:2]


def _before(records: RunRecords, a: Attempt) -> int | str | None:
    """The attempt whose state `a` started from; a description if that is unknown; None if `a`
    started from scratch.
    """
    who, after = f"attempt {a.attempt}", a.resumed_from_step
    if a.continues is not None:
        return _remembered(records, a, a.continues)
    if began_initially(records, a):
        return None
    if a.resumed_from is None:
        return f"{who} began at step {after} and names no checkpoint" if after else None
    parent = committed_as(records, a.resumed_from.commit_sha256, before=a.attempt)
    if parent is None:
        return (
            f"{who} resumed from a checkpoint that no earlier attempt committed"
            f" ({a.resumed_from.path})"
        )
    if parent.global_step != after:
        return (
            f"{who} says it resumed at step {after}, its checkpoint is of step {parent.global_step}"
        )
    return parent.attempt


def _remembered(records: RunRecords, a: Attempt, earlier: int) -> int | str:
    """`earlier`, if its records show that it reached the step after which `a` continues from its
    memory; else a description of the contradiction.
    """
    who, logs = (
        f"attempt {a.attempt} goes on after step {a.resumed_from_step} of attempt {earlier}",
        records.logs(earlier),
    )
    if not 0 <= earlier < a.attempt:
        return f"{who}, which is not before it"
    if a.memory != SURVIVORS:
        return (
            earlier
            if a.resumed_from_step <= furthest(records, earlier)
            else f"{who}, which did not come so far"
        )
    reported_steps = {
        lines.events[0].global_step for lines in logs.survivor_reports.values() if lines.events
    }
    if not reported_steps:
        return f"{who}, and no survivor reports that it came so far"
    return (
        earlier
        if a.resumed_from_step in reported_steps
        else f"{who}, and those who outlived others left it after step {max(reported_steps)}"
    )


def furthest(records: RunRecords, attempt: int) -> int:
    """The last step that any rank of `attempt` logged; without logs, the step that it resumed
    from.
    """
    began = next((a.resumed_from_step for a in records.attempts if a.attempt == attempt), 0)
    return max(
        [
            began,
            *(
                lines.events[-1].global_step
                for lines in records.logs(attempt).ranks.values()
                if lines.events
            ),
        ]
    )


def committed_as(records: RunRecords, commit_sha256: str, *, before: int) -> CheckpointLine | None:
    """The `committed` line with that hash among the attempts before `before`. One that names
    another attempt than its log's is none: who follows it would walk in circles.
    """
    lines = (
        line
        for a in records.attempt_logs
        if a.attempt < before
        for line in a.checkpoints.events
        if line.attempt == a.attempt
    )
    return next(
        (
            line
            for line in lines
            if line.event == "committed" and line.commit_sha256 == commit_sha256
        ),
        None,
    )


def end_of(records: RunRecords, attempt: Attempt) -> int:
    """The last step that `attempt` committed, from its final record, its survivor report, or the
    last step that every rank logged.
    """
    logs = records.logs(attempt.attempt)
    if logs.final:
        return logs.final.global_step
    if logs.survivor_report:
        return logs.survivor_report.global_step
    last = [lines.events[-1].global_step for lines in logs.ranks.values() if lines.events]
    if not last:
        return attempt.resumed_from_step
    if attempt.outcome == "completed":
        return max(last)
    return min(last) if len(last) == attempt.world_size else attempt.resumed_from_step


def seen_before(records: RunRecords) -> dict[int, int]:
    """By attempt, the highest step that any earlier attempt logged: its steps up to there are
    replay.
    """
    highest, seen = 0, {}
    for a in records.attempt_logs:
        seen[a.attempt] = highest
        highest = max([highest, *(max(steps_of(lines), default=0) for lines in a.ranks.values())])
    return seen


def steps_of(lines: Log[RankLine]) -> Sequence[int]:
    """The step of each line, in the order of the file."""
    columns = rank_columns(lines)
    if columns is None:
        return [line.global_step for line in lines.events]
    if columns.consecutive:
        return range(int(columns.global_step[0]), int(columns.global_step[-1]) + 1)
    steps: list[int] = columns.global_step.tolist()
    return steps


def lines_of_step(lines: Log[RankLine], step: int) -> Sequence[RankLine]:
    """The lines of `step` in a log: more than one if it was logged twice."""
    columns = rank_columns(lines)
    if columns is None:
        return [line for line in lines.events if line.global_step == step]
    if columns.consecutive:
        rows = columns.rows(step - 1, step)
        return columns.lines(rows.start, rows.stop)
    there = np.flatnonzero(columns.global_step == step).tolist()
    return [columns.lines(row, row + 1)[0] for row in there]


def instants_of(lines: Log[RankLine]) -> list[float]:
    """When each line was written, in the order of the file."""
    columns = rank_columns(lines)
    return [line.at for line in lines.events] if columns is None else columns.at.tolist()


def instants_by_step(lines: Log[RankLine]) -> dict[int, float]:
    """By step, when its line was written: its last one."""
    return dict(zip(steps_of(lines), instants_of(lines), strict=True))


def components_of_lines(
    lines: Log[RankLine], steps: Collection[int] | None = None
) -> Iterator[tuple[int, dict[str, str]]]:
    """The step, and the digests by component, of each line (of `steps`) that has some."""
    columns = rank_columns(lines)
    if columns is None:
        for line in lines.events:
            if line.components and (steps is None or line.global_step in steps):
                yield line.global_step, line.components
        return
    logged = columns.global_step[columns.digest_rows]
    chosen = slice(None) if steps is None else np.isin(logged, list(steps))
    for row, _, components in columns.digested(chosen):
        yield int(columns.global_step[row]), components


def replayed_steps(records: RunRecords) -> int:
    """The number of steps repeated that an earlier attempt had already done, by rank 0's log."""
    seen = seen_before(records)
    return sum(
        step <= seen[a.attempt]
        for a in records.attempt_logs
        if 0 in a.ranks
        for step in steps_of(a.ranks[0])
    )


def covered(records: RunRecords, segment: Segment) -> list[tuple[RankColumns, slice]] | None:
    """By rank, where the steps of a segment are in its log, if each rank of the segment has all of
    them, once and in order, and no other rank has left a log; else None: then look at each line.
    """
    logs, steps = records.logs(segment.attempt).ranks, len(segment.steps())
    if records.columns is None or set(logs) != set(range(segment.world_size)):
        return None
    rows_by_rank = []
    for rank in range(segment.world_size):
        columns = records.columns.get((segment.attempt, rank))
        rows = columns.rows(segment.after, segment.until) if columns else slice(0, 0)
        if columns is None or rows.stop - rows.start != steps:
            return None
        rows_by_rank.append((columns, rows))
    return rows_by_rank


def lines_of(records: RunRecords, segment: Segment) -> dict[tuple[int, int], list[RankLine]]:
    """The ranks' lines of a segment, by (step, rank); more than one line if a step was logged
    twice.
    """
    by_place: dict[tuple[int, int], list[RankLine]] = {}
    for rank, lines in records.logs(segment.attempt).ranks.items():
        for line in lines.events:
            if segment.after < line.global_step <= segment.until:
                by_place.setdefault((line.global_step, rank), []).append(line)
    return by_place


def losses(records: RunRecords, path: Lineage) -> dict[int, dict[int, float]]:
    """Committed losses by step and rank, or by step and replica (the first line if there are
    several); both sorted.
    """
    whole = _losses_at_once(records, path)
    if whole is not None:
        return {step: dict(enumerate(values)) for step, values in sorted(whole)}
    by_step: dict[int, dict[int, float]] = {}
    for segment in path.segments:
        for (step, _), lines in lines_of(records, segment).items():
            by_step.setdefault(step, {}).update(
                losses_of(lines[0], records.stored.config.elastic.replicas)
            )
    return {step: dict(sorted(by_rank.items())) for step, by_rank in sorted(by_step.items())}


def mean_losses(records: RunRecords, path: Lineage) -> dict[int, float | None]:
    """By committed step, the mean of its losses; None where one is not finite."""
    whole = _losses_at_once(records, path)
    if whole is None:
        whole = ((step, tuple(ranks.values())) for step, ranks in losses(records, path).items())
    return {step: _mean(values) for step, values in whole}


def _losses_at_once(
    records: RunRecords, path: Lineage
) -> Iterator[tuple[int, tuple[float, ...]]] | None:
    """Each committed step and the losses of its ranks; None where lines have to be looked at."""
    there = [covered(records, segment) for segment in path.segments]
    if records.stored.config.elastic.replicas or None in there:
        return None
    return chain.from_iterable(
        zip(
            segment.steps(),
            zip(*(columns.loss[rows].tolist() for columns, rows in ranks or ()), strict=True),
            strict=True,
        )
        for segment, ranks in zip(path.segments, there, strict=True)
    )


def _mean(values: Sequence[float]) -> float | None:
    try:
        mean = math.fsum(values) / len(values)
    except (ValueError, OverflowError):  # infinities of both signs
        return None
    return mean if math.isfinite(mean) else None


def losses_of(line: RankLine, replicas: int) -> dict[int, float]:
    """The line's loss by rank, or by replica, so that runs with different world sizes can be
    compared.
    """
    if isinstance(line.loss, tuple):
        # a stranger's record may say that it has none
        places = owned(replicas, line.rank, line.world_size) if replicas else range(len(line.loss))
        return dict(zip(places, line.loss, strict=False))
    return {line.rank: line.loss}


def evaluations(records: RunRecords, path: Lineage) -> dict[int, Evaluation]:
    """Quality after each evaluated step of the committed sequence, sorted by step: the one that was
    measured last, if several were.
    """
    by_step = {
        measured.global_step: measured
        for a in records.attempt_logs
        for measured in a.evaluations.events
    }
    return {step: by_step[step] for step in sorted(by_step) if step <= path.last_step}


class LineChains:
    """The running hashes over the committed lines of each rank in one chain: chain = sha256(chain +
    line), from the empty string. What several sequences begin with is hashed once.
    """

    def __init__(self, records: RunRecords) -> None:
        self._records = records
        # by rank, attempt, step and chain before: by step, the chain after it
        self._reached: dict[tuple[int, int, int, str], dict[int, str]] = {}

    def of(self, path: Lineage, rank: int) -> str:
        """The chain of `rank` after the last step of `path`."""
        chain = ""
        for segment in path.chained:
            lines = self._records.logs(segment.attempt).ranks.get(rank)
            if lines is not None:
                chain = self._after(segment, rank, lines, chain)
        return chain

    def _after(self, segment: Segment, rank: int, lines: Log[RankLine], chain: str) -> str:
        columns = rank_columns(lines)
        if columns is None or not columns.consecutive or not isinstance(lines.raw, FileLines):
            for event, raw in zip(lines.events, lines.raw, strict=True):
                if segment.after < event.global_step <= segment.until:
                    chain = hashlib.sha256(chain.encode() + raw).hexdigest()
            return chain
        reached = self._reached.setdefault(
            (rank, segment.attempt, segment.after, chain), {segment.after: chain}
        )
        nearest = max(step for step in reached if step <= max(segment.until, segment.after))
        link, rows = reached[nearest].encode(), columns.rows(nearest, segment.until)
        for batch in lines.raw.between(rows.start, rows.stop):
            for raw in batch:
                link = hashlib.sha256(b"%b%b\n" % (link, raw)).hexdigest().encode()
        reached[segment.until] = link.decode()
        return reached[segment.until]


def line_chain(records: RunRecords, path: Lineage, rank: int) -> str:
    """The chain of one rank: see `LineChains`."""
    return LineChains(records).of(path, rank)
