"""Computes which states a disk may be in at a power loss from the log of its writes and flushes. Pure: no disk is touched.

Writes before a flush are durable. Of the writes after the last flush any subset may be there, whole or torn at 4 KiB.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from ecrl_cli.studies.power_loss.disk_server import DiskWrite

PAGE = 4096
_ALL_SUBSETS_UP_TO = 4  # pending writes: 16 subsets


@dataclass(frozen=True)
class State:
    """The first `prefix` records, without those `dropped`; of the record `torn[0]` only the bytes from `torn[1]` to `torn[2]`. `acknowledged`:
    number of saves acknowledged by then."""

    prefix: int
    acknowledged: int
    dropped: tuple[int, ...] = ()
    torn: tuple[int, int, int] | None = None

    def writes(self, log: Sequence[DiskWrite]) -> Iterator[DiskWrite]:
        for index in range(self.prefix):
            record = log[index]
            if record.is_flush or index in self.dropped:
                continue
            if self.torn is not None and self.torn[0] == index:
                record = DiskWrite(record.offset + self.torn[1], record.data[self.torn[1] : self.torn[2]])
            yield record


@dataclass(frozen=True)
class CrashStates:
    """`epochs`: groups of writes between two flushes; `exhausted` of them contribute every subset and every tear, the others a sample."""

    states: tuple[State, ...]
    prefixes: int
    epochs: int
    exhausted: int


def crash_states(log: Sequence[DiskWrite], start: int, acknowledged: Sequence[int], limit: int, rng: random.Random) -> CrashStates:
    """At most `limit` distinct states from record `start` on: every prefix (a sample with every acknowledgement, if `limit` is smaller), then
    drops and tears, alternating between the epochs. `acknowledged[i]`: number of records when save i+1 was acknowledged."""
    prefixes = _prefixes(log, start, acknowledged)
    if len(prefixes) > limit:
        kept = [state for state in prefixes if state.prefix in acknowledged]
        others = [state for state in prefixes if state.prefix not in acknowledged]
        chosen = kept + rng.sample(others, max(0, limit - len(kept)))
        prefixes = sorted(chosen, key=lambda state: state.prefix)
    epochs = list(_epochs(log, start))
    drops = _drops(log, [(members, sum(at <= members[-1] + 1 for at in acknowledged)) for members in epochs], limit - len(prefixes), rng)
    few = sum(len(members) <= _ALL_SUBSETS_UP_TO for members in epochs)
    return CrashStates((*prefixes, *drops), len(prefixes), len(epochs), few if len(prefixes) + len(drops) < limit else 0)


def _prefixes(log: Sequence[DiskWrite], start: int, acknowledged: Sequence[int]) -> list[State]:
    """Prefixes after every write, and at every acknowledgement."""
    moments = [start, *(index + 1 for index in range(start, len(log)) if not log[index].is_flush), *acknowledged]
    return [State(moment, sum(at <= moment for at in acknowledged)) for moment in sorted(set(moments))]


def _epochs(log: Sequence[DiskWrite], start: int) -> Iterator[tuple[int, ...]]:
    """Groups of writes between two flushes with more than one write, or with one that can tear."""
    members: list[int] = []
    for index in range(start, len(log) + 1):
        if index < len(log) and not log[index].is_flush:
            members.append(index)
            continue
        if len(members) > 1 or any(len(log[member].data) > PAGE for member in members):
            yield tuple(members)
        members = []


def _drops(log: Sequence[DiskWrite], epochs: Sequence[tuple[tuple[int, ...], int]], budget: int, rng: random.Random) -> list[State]:
    """States at the end of an epoch with writes dropped, one from each epoch in turn until the limit is reached or nothing new comes."""
    found: dict[State, None] = {}
    sources = [_subsets(log, members, acknowledged, rng) for members, acknowledged in epochs]
    barren = 0
    while sources and len(found) < budget and barren < 4:
        before = len(found)
        for source in list(sources):
            state = next(source, None)
            if state is None:
                sources.remove(source)
            elif len(found) < budget:
                found[state] = None
        barren = barren + 1 if len(found) == before else 0
    return list(found)


def _subsets(log: Sequence[DiskWrite], members: tuple[int, ...], acknowledged: int, rng: random.Random) -> Iterator[State]:
    prefix = members[-1] + 1
    if len(members) <= _ALL_SUBSETS_UP_TO:
        for count in range(1, len(members)):
            for dropped in combinations(members, count):
                yield State(prefix, acknowledged, dropped)
        for index in members:
            for cut in range(PAGE, len(log[index].data), PAGE):
                yield State(prefix, acknowledged, torn=(index, 0, cut))
        return
    while True:
        share = rng.random()
        dropped = tuple(index for index in members if rng.random() < share) or (rng.choice(members),)
        kept = [index for index in members if index not in dropped and len(log[index].data) > PAGE]
        yield State(prefix, acknowledged, dropped, _torn(log, kept, rng))


def _torn(log: Sequence[DiskWrite], kept: Sequence[int], rng: random.Random) -> tuple[int, int, int] | None:
    """In half of the cases, one of the longer writes with only its beginning or its end."""
    if not kept or rng.random() < 0.5:
        return None
    index = rng.choice(kept)
    size = len(log[index].data)
    cut = PAGE * rng.randrange(1, -(-size // PAGE))
    return (index, 0, cut) if rng.random() < 0.5 else (index, cut, size)
