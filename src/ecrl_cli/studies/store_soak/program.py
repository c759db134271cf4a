"""Plays a program on the machine and on the reference, operation by operation; the first disagreement ends it. And makes it shorter."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from unittest.mock import patch

from ecrl_cli.linux import clock
from ecrl_cli.studies.store_soak.clocks import JumpingClock
from ecrl_cli.studies.store_soak.model_run import Cell, Disagreement, Game
from ecrl_cli.studies.store_soak.operations import Op

__all__ = ["Cell", "Played", "play", "shortest"]
TRIES = 600  # programs played at most; what is left then is short enough to read

Fails = Callable[[Sequence[Op]], bool]


@dataclass
class Played:
    """`at`: the operation at which they disagreed, -1 where they never did; `wrong`: in words. `met`: how often what happened."""

    at: int = -1
    wrong: str = ""
    met: Counter[str] = field(default_factory=Counter)


def play(ops: Sequence[Op], cell: Cell) -> Played:
    """Play `ops` from an empty disk on. The same list always plays the same way."""
    jumping, numbers = JumpingClock(), itertools.count()
    with patch("secrets.token_hex", lambda length: f"{next(numbers):0{2 * length}x}"), patch.object(clock, "time", jumping):
        game = Game(cell, jumping)
        try:
            for at, op in enumerate(ops):
                try:
                    game.do(op)
                except Disagreement as wrong:
                    return Played(at, str(wrong), game.met)
        finally:
            game.machine.close()
    return Played(met=game.met)


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
