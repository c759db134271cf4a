"""The cost of each restart by phase."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from ecrl_cli.history.load import RunRecords
from ecrl_cli.history.timeline import PHASES, Timeline, phases, replays
from ecrl_cli.supervision.attempts.restart_policy import RELAUNCHED

RESTART_COSTS = (*PHASES, "replay")


@dataclass(frozen=True)
class Restart:
    """An attempt that follows one that died. `after`: that one's outcome. `replayed`: steps repeated. `seconds`: by RESTART_COSTS."""

    attempt: int
    after: str
    resumed_from_step: int
    replayed: int
    seconds: dict[str, float]

    @property
    def total_s(self) -> float:
        return math.fsum(self.seconds.values())


def restarts(records: RunRecords, account: Timeline) -> tuple[Restart, ...]:
    """Every restart, in order. Not counted: the run's launch, and attempts after one that was stopped or resized."""
    starts, again = phases(records, account), replays(account)
    found = []
    for before, a in pairwise(records.attempts):
        if before.outcome in RELAUNCHED:
            steps, seconds = again.get(a.attempt, (0, 0.0))
            costs = {name: starts[a.attempt][name] for name in PHASES} | {"replay": seconds}
            found.append(Restart(a.attempt, before.outcome, a.resumed_from_step, steps, costs))
    return tuple(found)
