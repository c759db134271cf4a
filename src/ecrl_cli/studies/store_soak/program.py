"""Plays a program on the machine and on the reference, operation by operation; the first disagreement ends it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from unittest.mock import patch

from ecrl_cli.linux import clock
from ecrl_cli.studies.store_soak.clocks import JumpingClock
from ecrl_cli.studies.store_soak.model_run import Cell, Disagreement, Game
from ecrl_cli.studies.store_soak.operations import Op

__all__ = ["Cell", "Played", "play"]


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
