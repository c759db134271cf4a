"""From a long program that ends in a disagreement to the shortest one that does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ecrl_cli.studies.store_soak.operations import Op

TRIES = 600  # programs played at most; what is left then is short enough to read

Fails = Callable[[Sequence[Op]], bool]


def shortest(ops: Sequence[Op], fails: Fails, tries: int = TRIES) -> tuple[Op, ...]:
    """A part of `ops` that `fails`, of which no operation can be left out and no trouble taken away (or the best within `tries`)."""
    budget = iter(range(tries))

    def still(candidate: Sequence[Op]) -> bool:
        return next(budget, None) is not None and fails(candidate)

    return _plainest(_fewest(tuple(ops), still), still)


def _fewest(ops: tuple[Op, ...], still: Fails) -> tuple[Op, ...]:
    """Halves are left out first, single operations last; from the end, where the disagreement is, to the beginning."""
    size = max(1, len(ops) // 2)
    while True:
        before = ops
        for start in range((len(ops) - 1) // size * size, -1, -size):
            candidate = ops[:start] + ops[start + size :]
            if len(candidate) < len(ops) and still(candidate):
                ops = candidate
        if size == 1 and ops == before:
            return ops
        size = max(1, size // 2)


def _plainest(ops: tuple[Op, ...], still: Fails) -> tuple[Op, ...]:
    """Nothing befalls an operation that need not be disturbed; what befalls it happens once rather than for ever."""
    for place, op in enumerate(ops):
        for plainer in (Op(op.do, detail=op.detail, number=op.number), replace(op, sticky=False)):
            candidate = ops[:place] + (plainer,) + ops[place + 1 :]
            if plainer != ops[place] and still(candidate):
                ops = candidate
                break
    return ops
