"""How many ranks a plan leaves: with `recovery=lossy_forward` whoever is left goes on, and must be able to share the batch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import ConfigError
from ecrl_cli.records.events import PlannedFailure

ENDING = ("exit", "kill", "raise", "oom", "nan")  # kinds that end their victims and leave the others; a hang ends all


def check_sizes(entries: tuple[PlannedFailure, ...], config: RunConfig) -> None:
    """ConfigError where so many ranks are left behind one of `entries` that they cannot share the batch equally."""
    if config.recovery.name != "lossy_forward":
        return
    for size, gone, entry in _sizes(entries, config):
        if config.global_batch % size:
            fact = f"{config.global_batch} is not divisible by the {size} ranks that failure {entry.index + 1} leaves"
            raise ConfigError("global_batch", fact, f"use {config.global_batch - config.global_batch % size + size}, or supervision.spares={gone}")


def _sizes(entries: tuple[PlannedFailure, ...], config: RunConfig) -> Iterator[tuple[int, int, PlannedFailure]]:
    """Every size that is left, of how many dead, and the failure that leaves it.

    Behind the death of all, all are there again. What strikes by the clock may strike at any time, and counts at any.
    """
    size, spares = config.world_size, config.supervision.spares
    reached = {size}
    ending = [entry for entry in entries if entry.kind in ENDING]
    by_step = sorted((entry for entry in ending if entry.moment != "wall"), key=lambda entry: entry.global_step)
    for _, together in groupby(by_step, key=lambda entry: entry.global_step):
        struck = list(together)
        gone = {rank for entry in struck if entry.rank < size for rank in (entry.rank, *entry.others) if rank < size}
        size = _after(size, len(gone), spares, config)
        reached.add(size)
        yield size, len(gone), struck[-1]
    for entry in (entry for entry in ending if entry.moment == "wall"):
        reached |= {_after(before, 1, spares, config) for before in reached if entry.rank < before}
        yield from ((size, 1, entry) for size in sorted(reached, reverse=True))


def _after(size: int, gone: int, spares: int, config: RunConfig) -> int:
    """How many go on where `gone` of `size` have died: all anew where nobody is left."""
    return min(size, size - gone + spares) if gone < size else config.world_size
