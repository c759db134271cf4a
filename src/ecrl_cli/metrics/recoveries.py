"""The cost of each restart by phase, and of each recovery from the fault to the first step that had
not been done before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from ecrl_cli.history.lineage import lineage, seen_before
from ecrl_cli.history.load import RunRecords
from ecrl_cli.history.membership import given_up, lost_lines
from ecrl_cli.history.timeline import PHASES, Timeline, fatal_fault_instants, phases, replays
from ecrl_cli.records.events import Attempt
from ecrl_cli.records.survivor_records import SURVIVED, SURVIVORS
from ecrl_cli.supervision.attempts.restart_policy import RELAUNCHED

RESTART_COSTS = (*PHASES, "replay")
_NOT_NEW = ({*PHASES} | {"replay"}) - {"warm_up"}  # a first step warms up, but is new work


@dataclass(frozen=True)
class Restart:
    """An attempt that follows one that died. `after`: that one's outcome. `replayed`: steps
    repeated. `seconds`: by RESTART_COSTS.
    """

    attempt: int
    after: str
    resumed_from_step: int
    replayed: int
    seconds: dict[str, float]

    @property
    def total_s(self) -> float:
        return math.fsum(self.seconds.values())


def restarts(records: RunRecords, account: Timeline) -> tuple[Restart, ...]:
    """Every restart, in order. Not counted: the run's launch, and attempts after one that was
    stopped or resized.
    """
    starts, again = phases(records, account), replays(account)
    found = []
    for before, a in pairwise(records.attempts):
        if before.outcome in RELAUNCHED:
            steps, seconds = again.get(a.attempt, (0, 0.0))
            costs = {name: starts[a.attempt][name] for name in PHASES} | {"replay": seconds}
            found.append(Restart(a.attempt, before.outcome, a.resumed_from_step, steps, costs))
    return tuple(found)


@dataclass(frozen=True)
class Recovery:
    """An attempt that follows one in which ranks died or hung.

    `way`: the state it started from: `survivors`, `snapshot`, `checkpoint` or `nothing`. `ranks`:
    before and after; `joined`: number of warm spares among the latter. `lost_samples`: of the step
    finished without the dead ranks. `seconds`: from the fault (if its instant is known, else from
    its detection) to the first new step, or to the end of the attempt.
    """

    attempt: int
    way: str
    resumed_from_step: int
    ranks: tuple[int, int]
    joined: int
    lost_samples: int
    given_up_steps: int
    seconds: float


def recoveries(records: RunRecords, account: Timeline) -> tuple[Recovery, ...]:
    """Every recovery, in order; none after an attempt that was stopped or resized, or across
    sessions.
    """
    ended = (*RELAUNCHED, SURVIVED)
    pairs = pairwise(records.attempts)
    return tuple(
        _recovery(records, account, before, a)
        for before, a in pairs
        if before.outcome in ended and before.session == a.session
    )


def _recovery(records: RunRecords, account: Timeline, before: Attempt, a: Attempt) -> Recovery:
    way = a.memory or ("checkpoint" if a.resumed_from else "nothing")
    lost = {
        sample
        for attempt, line in lost_lines(records, lineage(records))
        if attempt == before.attempt
        for sample in line.samples
    }
    return Recovery(
        attempt=a.attempt,
        way=way,
        resumed_from_step=a.resumed_from_step,
        ranks=(before.world_size, a.world_size),
        joined=len(a.joined),
        lost_samples=len(lost) if way == SURVIVORS else 0,
        given_up_steps=given_up(records, before.attempt),
        seconds=max(
            0.0, _working_again(records, account, a) - _fault_instant(records, account, before)
        ),
    )


def _fault_instant(records: RunRecords, account: Timeline, before: Attempt) -> float:
    noticed = [
        piece.start
        for piece in account.of_categories(("detect",))
        if piece.attempt == before.attempt
    ]
    return min(
        fatal_fault_instants(records, before) or noticed,
        default=before.ended_at or before.launched_at,
    )


def _working_again(records: RunRecords, account: Timeline, a: Attempt) -> float:
    seen = seen_before(records).get(a.attempt, 0)
    new = account.new_work(a.attempt, seen, _NOT_NEW)
    return (a.ended_at or a.launched_at) if new is None else new
