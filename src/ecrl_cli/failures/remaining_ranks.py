"""How many ranks a plan leaves: with a recovery that shrinks, the surviving ranks must divide the global batch."""

from __future__ import annotations

import math
from itertools import groupby

from ecrl_cli.config.recoveries import recovery_of
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import ConfigError
from ecrl_cli.failures.fault_kind import Ends
from ecrl_cli.failures.registry import fault_kind
from ecrl_cli.records.events import PlannedFailure


def check_sizes(entries: tuple[PlannedFailure, ...], config: RunConfig) -> None:
    """ConfigError if the ranks left by one of `entries` do not divide the batch, or its victim is already gone."""
    if not recovery_of(config).shrinks:
        return
    left = _Left(config)
    by_step = sorted((entry for entry in entries if entry.moment != "wall"), key=lambda entry: entry.global_step)
    for _, together in groupby(by_step, key=lambda entry: entry.global_step):
        left.strike(tuple(together))
    for entry in entries:
        if entry.moment == "wall":
            left.strike_whenever(entry)
    misfit = next((size for size in left.sizes if config.global_batch % size), None)
    if misfit is not None:
        gone, entry = left.sizes[misfit]
        common = math.lcm(config.world_size, *left.sizes)
        fact = f"{config.global_batch} is not divisible by the {misfit} ranks that failure {entry.index + 1} leaves"
        raise ConfigError("global_batch", fact, f"use a multiple of {common}, or supervision.spares={gone}")


class _Left:
    """Follows the number of ranks through a plan. `sizes`: by size reached, how many ranks died and the failure that caused it."""

    def __init__(self, config: RunConfig) -> None:
        self._all, self._spares, self._drawn = config.world_size, config.supervision.spares, config.failure.kind == "mtbf"
        self._size = config.world_size
        self.sizes: dict[int, tuple[int, PlannedFailure]] = {}

    def strike(self, together: tuple[PlannedFailure, ...]) -> None:
        """Applies the failures of one step."""
        there = [entry for entry in together if entry.rank < self._size]
        if len(there) < len(together) and not self._drawn:  # drawn ranks are not checked for existence
            missing = next(entry for entry in together if entry not in there)
            fact = f"failure {missing.index + 1} strikes rank {missing.rank}, and only {self._size} ranks are left at step {missing.global_step}"
            raise ConfigError("failure", fact, f"strike rank 0 to {self._size - 1}, or add supervision.spares=1")
        gone = {rank for entry in there if fault_kind(entry.kind).others_go_on for rank in (entry.rank, *entry.others) if rank < self._size}
        if any(fault_kind(entry.kind).ends is Ends.ATTEMPT for entry in there):
            self._size = self._all
        elif gone:
            self._size = self._after(self._size, len(gone))
            self.sizes.setdefault(self._size, (len(gone), there[-1]))

    def strike_whenever(self, entry: PlannedFailure) -> None:
        """Applies a failure at a wall time: it may happen at any size."""
        if fault_kind(entry.kind).others_go_on:
            for size in (self._all, *list(self.sizes)):
                if entry.rank < size:
                    self.sizes.setdefault(self._after(size, 1), (1, entry))

    def _after(self, size: int, gone: int) -> int:
        """The size after `gone` of `size` ranks have died; the full size (a restart) if none is left."""
        return min(size, size - gone + self._spares) if gone < size else self._all
