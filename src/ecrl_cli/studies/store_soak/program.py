"""Runs a program on the machine and the reference model up to the first disagreement, and shrinks failing programs."""

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
TRIES = 600  # maximum number of programs run to shrink one

Fails = Callable[[Sequence[Op]], bool]


@dataclass
class Played:
    """`at`: the operation of the disagreement, -1 if none; `wrong`: its description. `met`: how often each event occurred."""

    at: int = -1
    wrong: str = ""
    met: Counter[str] = field(default_factory=Counter)


def play(ops: Sequence[Op], cell: Cell) -> Played:
    """Run `ops` from an empty disk. Deterministic in the list."""
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
    """A failing part of `ops` from which no operation and no fault can be removed (or the best found within `tries`)."""
    budget = iter(range(tries))

    def still(candidate: Sequence[Op]) -> bool:
        return next(budget, None) is not None and fails(candidate)

    return _plainest(_fewest(tuple(ops), still), still)


def _fewest(ops: tuple[Op, ...], still: Fails) -> tuple[Op, ...]:
    """Leave out halves first, single operations last; from the end, where the disagreement is, to the start."""
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
    """Remove faults that are not needed, and make sticky ones occur once."""
    for place, op in enumerate(ops):
        for plainer in (Op(op.do, detail=op.detail, number=op.number), replace(op, sticky=False)):
            candidate = ops[:place] + (plainer,) + ops[place + 1 :]
            if plainer != ops[place] and still(candidate):
                ops = candidate
                break
    return ops
