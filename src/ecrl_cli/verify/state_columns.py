"""Comparisons of the state on all lines at once, over their columns: see `line_columns`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

import numpy as np

from ecrl_cli.config.legs import legs, schedule_after
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.history.lineage import Lineage, covered
from ecrl_cli.history.load import RunRecords
from ecrl_cli.records.columns import (
    DIGEST_BYTES,
    Digests,
    Floats,
    Numbers,
    RankColumns,
    rank_columns,
)
from ecrl_cli.records.events import RankLine
from ecrl_cli.records.journal import Log
from ecrl_cli.records.state_digests import RANK_COMPONENTS


def steps_agreed(records: RunRecords, path: Lineage, claimed: Collection[str]) -> int | None:
    """After how many steps of `path` two ranks or more logged digests, if all ranks hold the same
    in the `claimed` names; else None.
    """
    agreed = 0
    for segment in path.segments:
        ranks = covered(records, segment)
        if ranks is None:
            return None
        first = ranks[0]
        if not all(same_rates(first, part) and same_states(first, part, claimed) for part in ranks):
            return None
        digested = [columns.global_step[_digested(columns, rows)] for columns, rows in ranks]
        _, times = np.unique(np.concatenate(digested), return_counts=True)
        agreed += int((times > 1).sum())
    return agreed


Part = tuple[RankColumns, slice]  # a log and the places of some of its lines
Side = tuple[RunRecords, Lineage]  # a run and its committed sequence


def same_rates(one: Part, other: Part) -> bool:
    """Whether two ranks had the same learning rate after as many steps, where both have one."""
    ours, theirs = one[0].lr[one[1]], other[0].lr[other[1]]
    return bool(((ours == theirs) | np.isnan(ours) | np.isnan(theirs)).all())


def same_states(one: Part, other: Part, claimed: Collection[str]) -> bool:
    """Whether two ranks hold the same in the `claimed` components where both logged digests after
    a step.
    """
    names = [place for place, name in enumerate(RANK_COMPONENTS) if name in claimed]
    ours, theirs = (_digested(columns, rows) for columns, rows in (one, other))
    steps = one[0].global_step[ours], other[0].global_step[theirs]
    _, at_ours, at_theirs = np.intersect1d(*steps, assume_unique=True, return_indices=True)
    return not (
        _components(one)[at_ours][:, names] != _components(other)[at_theirs][:, names]
    ).any()


def equal_steps(ours: Side, theirs: Side, claimed: int, names: Callable[[int], set[str]]) -> bool:
    """Whether both sides have every step up to `claimed` once on each of equally many ranks, with
    equal losses, learning rates, and, where both logged digests, equal states in the components
    that `names` gives for the rank.
    """
    for one in ours[1].segments:
        for other in theirs[1].segments:
            after, until = max(one.after, other.after), min(one.until, other.until, claimed)
            if after >= until:
                continue
            pair = [
                covered(run, replace(segment, after=after, until=until))
                for (run, _), segment in ((ours, one), (theirs, other))
            ]
            if pair[0] is None or pair[1] is None or len(pair[0]) != len(pair[1]):
                return False
            for rank, (mine, their) in enumerate(zip(*pair, strict=True)):
                if not (
                    (mine[0].loss[mine[1]] == their[0].loss[their[1]]).all()
                    and same_rates(mine, their)
                    and same_states(mine, their, names(rank))
                ):
                    return False
    return min(ours[1].last_step, theirs[1].last_step) >= claimed


def any_digests(records: RunRecords, path: Lineage) -> bool:
    """Whether a line of the committed steps has digests of the state."""
    return any(
        len(_digested(columns, rows))
        for segment in path.segments
        for columns, rows in covered(records, segment) or ()
    )


def _digested(columns: RankColumns, rows: slice) -> Numbers:
    """The places among `rows` of the lines with digests."""
    return columns.digest_rows[_entries(columns, rows)]


def _components(part: Part) -> Digests:
    return part[0].components[_entries(*part)]


def _entries(columns: RankColumns, rows: slice) -> slice:
    return slice(*np.searchsorted(columns.digest_rows, (rows.start, rows.stop)).tolist())


def generators_apart(ranks: Mapping[int, Log[RankLine]]) -> bool:
    """Whether no two lines of one step have the same digest of the generators. False also where a
    log has no columns.
    """
    logs = [columns for lines in ranks.values() if (columns := rank_columns(lines)) is not None]
    if len(logs) < len(ranks) or not logs:
        return False
    steps = np.concatenate([columns.global_step[columns.digest_rows] for columns in logs])
    own = np.concatenate([columns.components[:, RANK_COMPONENTS.index("rng")] for columns in logs])
    order = np.lexsort((*own.T, steps))
    steps, own = steps[order], own[order]
    return not ((steps[1:] == steps[:-1]) & (own[1:] == own[:-1]).all(axis=1)).any()


def rates_as_due(config: RunConfig, columns: RankColumns, tolerance: float) -> bool:
    """Whether every learning rate is the schedule's within `tolerance`."""
    rated = ~np.isnan(columns.lr)
    rates = _learning_rates(config, columns.global_step[rated])
    return bool((np.abs(columns.lr[rated] - rates) <= tolerance).all())


def _learning_rates(config: RunConfig, steps: Numbers) -> Floats:
    """`train_state.learning_rate` of many steps."""
    low, high = config.optimizer.min_lr, config.optimizer.lr
    leg_ends = np.array([end for _, end in legs(config)])
    leg = np.searchsorted(leg_ends, steps, "left").clip(max=len(leg_ends) - 1)
    length, done = np.array([schedule_after(config, end) for end in leg_ends.tolist()]).T[:, leg]
    done = done + steps - leg_ends[leg]
    rates: Floats = low + (high - low) * (1 + np.cos(np.pi * done / length)) / 2
    return rates


def always_updated(columns: RankColumns, restored: str) -> bool:
    """Whether the parameters differ wherever digests were logged one after the other, and the first
    ones from those with the digest `restored`.
    """
    held = columns.components[:, RANK_COMPONENTS.index("parameters")]
    as_restored = len(held) > 0 and held[0].tobytes().hex() == restored
    return not as_restored and bool((held[1:] != held[:-1]).any(axis=1).all())


def digests_as_due(columns: RankColumns, due: Callable[[int], bool]) -> bool:
    """Whether every line has a learning rate, and digests where they are due after its step."""
    without = np.ones(len(columns), dtype=np.bool_)
    without[columns.digest_rows] = False
    return not np.isnan(columns.lr).any() and not any(
        map(due, columns.global_step[without].tolist())
    )


def has_step_of(lines: Log[RankLine], seconds: float) -> bool:
    """Whether a step of the log took exactly so many seconds."""
    columns = rank_columns(lines)
    if columns is None:
        return any(line.seconds == seconds for line in lines.events)
    return bool((columns.seconds == seconds).any())


def paired_digests(
    logs: Iterable[RankColumns], names: Collection[str]
) -> set[tuple[tuple[str, ...], str]]:
    """The pairs that lines have of the digests of the named components and that of the state."""
    places = [RANK_COMPONENTS.index(name) for name in names]
    distinct = set[bytes]()
    for columns in logs:
        parts = columns.components[:, places].reshape(len(columns.states), 4 * len(places))
        pairs = np.ascontiguousarray(np.concatenate((parts, columns.states), axis=1))
        data, size = pairs.tobytes(), pairs.shape[1] * pairs.itemsize
        distinct.update(data[at : at + size] for at in range(0, len(data), size))
    digests = (
        [pair[at : at + DIGEST_BYTES].hex() for at in range(0, len(pair), DIGEST_BYTES)]
        for pair in distinct
    )
    return {(tuple(parts), state) for *parts, state in digests}
