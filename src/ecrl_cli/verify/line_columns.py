"""Comparisons of all lines of all ranks at once, over their columns.

Each says whether everything is as it is due. Only where it is not, or where a log has no columns,
the check looks at the lines one by one, and says what is wrong.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ecrl_cli.config.elastic import fits, share
from ecrl_cli.config.schema import DIGESTS, RunConfig
from ecrl_cli.data.order import epoch_order, steps_per_epoch
from ecrl_cli.history.load import RunRecords
from ecrl_cli.records.columns import Digests, Numbers, RankColumns, rank_columns
from ecrl_cli.records.events import Attempt, RankLine
from ecrl_cli.records.journal import Log
from ecrl_cli.verify.rank_spans import ROUNDING_S
from ecrl_cli.verify.verification_input import every_line

_MOST_KEYS = 2**62


def constant(column: npt.NDArray[np.int64], value: int) -> bool:
    """Whether every entry is `value`."""
    return bool((column == value).all())


def world_sizes_of(lines: Log[RankLine]) -> set[int]:
    """The world sizes that the lines of a log name."""
    columns = rank_columns(lines)
    if columns is None:
        return {line.world_size for line in lines.events}
    return set(np.unique(columns.world_size).tolist())


def of_one_attempt(columns: RankColumns, a: Attempt, rank: int) -> bool:
    """Whether a log goes from step to step from where `a` began, all of it by `rank` of `a`."""
    return (
        columns.consecutive
        and bool(columns.global_step[0] == a.resumed_from_step + 1)
        and constant(columns.attempt, a.attempt)
        and constant(columns.rank, rank)
        and constant(columns.world_size, a.world_size)
    )


def instants_after(lines: Log[RankLine], at: float) -> list[float]:
    """The instants of a log's lines after `at`, in the order of the file."""
    columns = rank_columns(lines)
    if columns is None:
        return [line.at for line in lines.events if line.at > at]
    instants: list[float] = columns.at[columns.at > at].tolist()
    return instants


def one_after_another(columns: RankColumns, launched_at: float | None) -> bool:
    """Whether each step took some time, and none began before the one before had ended, or before
    the launch (None: it is on another clock).
    """
    began = columns.at - columns.seconds
    earliest = began[0] if launched_at is None else launched_at
    before = np.concatenate(([earliest], columns.at[:-1]))
    return bool((columns.seconds > 0).all() and (began >= before - ROUNDING_S).all())


def samples_as_due(records: RunRecords, size: int) -> bool:
    """Whether every line tells of its place in the epoch and of the samples that its rank owns
    there, of a data set of `size` samples. Not of runs with replicas.
    """
    config, logs = records.stored.config, records.columns
    if logs is None or config.elastic.replicas:
        return False
    by_size: dict[int, list[tuple[int, RankColumns]]] = {}
    for (_, rank), columns in logs.items():
        ranks = int(columns.world_size[0])
        if not _in_place(config, size, columns, rank, ranks):
            return False
        by_size.setdefault(ranks, []).append((rank, columns))
    return all(
        (due == logged).all()
        for ranks, sized in by_size.items()
        for due, logged in _due(config, size, ranks, sized)
    )


def _in_place(config: RunConfig, size: int, columns: RankColumns, rank: int, ranks: int) -> bool:
    """Whether the lines are of `rank` of `ranks`, and of the epoch and cursor of their steps."""
    steps = columns.global_step
    epochs, cursors = np.divmod(steps - 1, steps_per_epoch(size, config.global_batch))
    return (
        ranks > 0
        and 0 <= rank < ranks
        and fits(config, ranks)
        and steps[0] >= 1
        and bool(steps[-1] <= config.target_steps)
        and constant(columns.world_size, ranks)
        and constant(columns.rank, rank)
        and constant(columns.sample_ids_count, len(share(config.global_batch, rank, ranks)))
        and bool((columns.epoch == epochs).all())
        and bool((columns.cursor_step == cursors).all())
    )


def _due(
    config: RunConfig, size: int, ranks: int, logs: list[tuple[int, RankColumns]]
) -> Iterator[tuple[Digests, Digests]]:
    """The digests due and those logged, each (steps, 4): epoch by epoch and log by log."""
    per_epoch = steps_per_epoch(size, config.global_batch)
    first = min(int(columns.global_step[0]) for _, columns in logs)
    last = max(int(columns.global_step[-1]) for _, columns in logs)
    for epoch in range((first - 1) // per_epoch, (last - 1) // per_epoch + 1):
        begin = max(first, epoch * per_epoch + 1)
        end = min(last, (epoch + 1) * per_epoch)
        order = epoch_order(config.seed, epoch, size, config.global_batch)
        part = slice(begin - 1 - epoch * per_epoch, end - epoch * per_epoch)
        windows = order.reshape(per_epoch, config.global_batch)[part]
        digests = _shard_digests(windows, ranks)
        for rank, columns in logs:
            rows = columns.rows(begin - 1, end)
            start = int(columns.global_step[rows.start]) if rows.start < rows.stop else begin
            part = slice(start - begin, start - begin + rows.stop - rows.start)
            yield digests[part, rank], columns.samples[rows]


def _shard_digests(windows: npt.NDArray[np.int64], ranks: int) -> Digests:
    """(steps, ranks, 4): `ids_hash` of each rank's shard of windows (steps, samples). Shards follow
    one another in memory, window after window.
    """
    data, sha256 = memoryview(windows.astype("<i8", copy=False).tobytes()), hashlib.sha256
    size = len(data) // (len(windows) * ranks)
    digests = b"".join([sha256(data[at : at + size]).digest() for at in range(0, len(data), size)])
    return np.frombuffer(digests, dtype=np.uint64).reshape(len(windows), ranks, 4)


def repeated_lines(records: RunRecords) -> Iterator[tuple[int, int, RankLine]]:
    """The lines of `every_line`, but of steps that one attempt alone logged not all."""
    if records.columns is None:
        yield from every_line(records)
        return
    spans: dict[int, tuple[int, int]] = {}  # by attempt, its first and last step
    for (attempt, _), columns in records.columns.items():
        here = int(columns.global_step[0]), int(columns.global_step[-1])
        first, last = spans.get(attempt, here)
        spans[attempt] = min(first, here[0]), max(last, here[1])
    for (attempt, rank), columns in records.columns.items():
        first, last = spans[attempt]
        others = [
            (max(first, begin), min(last, end))
            for other, (begin, end) in spans.items()
            if other != attempt and begin <= last and end >= first
        ]
        if others:
            rows = columns.rows(min(others)[0] - 1, max(end for _, end in others))
            for line in columns.lines(rows.start, rows.stop):
                yield attempt, rank, line


@dataclass(frozen=True)
class ComparedInputs:
    """How many shards were computed `again` in the run, and how many `against` the reference."""

    again: int
    against: int


def inputs_as_due(records: RunRecords, reference: RunRecords | None) -> ComparedInputs | None:
    """How many inputs were compared, if they are equal wherever the same shard of the same epoch
    was computed more than once, in this run or the reference, always for as many ranks; else None.
    """
    runs = [run for run in (records, reference) if run is not None]
    logs = [list(run.columns.values()) for run in runs if run.columns is not None]
    every = [columns for tables_of_run in logs for columns in tables_of_run]
    name = records.stored.config.checkpoint.digest
    if (
        len(logs) < len(runs)
        or not all(logs)
        or len({columns.inputs_name for columns in every}) > 1
        or every[0].inputs_name not in ("", *DIGESTS)
        or every[0].inputs_name not in ("", name)
        or len({(columns.targets_name, columns.has_targets) for columns in every}) > 1
        or every[0].targets_name not in ("", *DIGESTS)
        or not all(constant(columns.world_size, int(every[0].world_size[0])) for columns in every)
    ):
        return None
    tables = _keyed(logs)
    if tables is None:
        return None
    keys = tables[0]
    if reference is None and len(np.unique(keys)) == len(keys):
        return ComparedInputs(0, 0)
    own, first, places = np.unique(keys, return_index=True, return_inverse=True)
    inputs = np.concatenate([columns.inputs_and_targets for columns in logs[0]])
    if (inputs != inputs[first][places]).any():
        return None
    if reference is None:
        return ComparedInputs(len(keys) - len(own), 0)
    their_keys = tables[1]
    their_inputs = np.concatenate([columns.inputs_and_targets for columns in logs[1]])
    theirs, last = np.unique(their_keys[::-1], return_index=True)
    _, ours_at, theirs_at = np.intersect1d(own, theirs, assume_unique=True, return_indices=True)
    same = inputs[first[ours_at]] == their_inputs[len(their_keys) - 1 - last[theirs_at]]
    return ComparedInputs(len(keys) - len(own), len(ours_at)) if same.all() else None


def _keyed(logs: list[list[RankColumns]]) -> list[Numbers] | None:
    """By run: for each line, one number for its epoch, cursor and rank; None if there are numbers
    too large, or below 0, for that.
    """
    every = [columns for run_logs in logs for columns in run_logs]
    bounds = [
        max(int(getattr(columns, name).max()) for columns in every) + 1
        for name in ("epoch", "cursor_step", "rank")
    ]
    least = min(
        int(getattr(columns, name).min())
        for columns in every
        for name in ("epoch", "cursor_step", "rank")
    )
    if least < 0 or bounds[0] * bounds[1] * bounds[2] > _MOST_KEYS:
        return None
    return [
        np.concatenate(
            [
                (columns.epoch * bounds[1] + columns.cursor_step) * bounds[2] + columns.rank
                for columns in run_logs
            ]
        )
        for run_logs in logs
    ]
