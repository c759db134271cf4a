"""The planned failures that the supervisor itself delivers: between two attempts, and after a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.failures.fault_kind import BetweenAttempts, Victim
from ecrl_cli.failures.fault_log import claim, fired_indices
from ecrl_cli.failures.plan import pending, read_plan
from ecrl_cli.failures.registry import fault_kind
from ecrl_cli.failures.signals import to_process
from ecrl_cli.history.load import load
from ecrl_cli.history.timeline import timeline
from ecrl_cli.linux.clock import monotonic, wall
from ecrl_cli.records.events import Attempt, InjectedFault, PlannedFailure
from ecrl_cli.records.layout import RunLayout

_AGAIN_S = 0.05  # between two looks for a rank whose time has come and who is not there yet


class BetweenAttemptFaults:
    """Failures between two attempts, before the next one chooses what to resume from."""

    def __init__(self, layout: RunLayout, store: CheckpointStore, seed: int) -> None:
        self._layout, self._store, self._seed = layout, store, seed

    def inject_due(self, earlier: tuple[Attempt, ...], *, chooses: bool = True) -> None:
        """Behind the attempts `earlier`, before the next one. `chooses`: whether that one goes back to a checkpoint."""
        seen = max((a.last_step or 0 for a in earlier), default=0)
        for entry in _left(self._layout, "rest") if earlier else ():
            if entry.global_step > seen:
                continue
            strike = fault_kind(entry.kind).strike_at_rest(BetweenAttempts(self._layout.root, self._store, self._seed + entry.index, chooses))
            if strike and claim(self._layout, _fired(entry, len(earlier), strike.detail)):
                strike.inject()


class WallClockFaults:
    """Failures at a wall time. `began`: of this supervisor's session, monotonic; `spent_s`: gives the seconds of the sessions before it."""

    def __init__(self, layout: RunLayout, attempt: int, began: float, spent_s: Callable[[], float]) -> None:
        self._layout, self._attempt, self._began = layout, attempt, began
        self._left = list(_left(layout, "wall"))
        self._spent_s = spent_s() if self._left else 0.0

    def left_s(self, now: float) -> float | None:
        """Seconds until the next one is to be looked at; None where none is to come."""
        return max(_AGAIN_S, min(self._due_at(entry) for entry in self._left) - now) if self._left else None

    def inject_due(self, now: float, pids: Mapping[int, int]) -> None:
        """Inject what is due. A rank whose pid is not known yet is struck as soon as it is."""
        for entry in [each for each in self._left if self._due_at(each) <= now]:
            kind = fault_kind(entry.kind)
            pid = os.getpid() if kind.victim is Victim.SUPERVISOR else pids.get(entry.rank)
            if pid is not None and kind.sends is not None:
                self._left.remove(entry)
                if claim(self._layout, _fired(entry, self._attempt)):
                    to_process(pid, kind.sends)

    def _due_at(self, entry: PlannedFailure) -> float:
        return self._began + entry.seconds - self._spent_s


def supervised_s(layout: RunLayout) -> float:
    """Seconds of all stays but the last, as the goodput clock has them: also of one that was killed."""
    return sum(end - start for start, end in timeline(load(layout)).windows[:-1])


def _left(layout: RunLayout, moment: str) -> tuple[PlannedFailure, ...]:
    if not layout.failures.exists():
        return ()
    return tuple(entry for entry in pending(read_plan(layout), fired_indices(layout)) if entry.moment == moment)


def _fired(entry: PlannedFailure, attempt: int, detail: str = "") -> InjectedFault:
    return InjectedFault(entry.index, entry.kind, entry.rank, entry.global_step, attempt, monotonic(), wall(), detail=detail)
