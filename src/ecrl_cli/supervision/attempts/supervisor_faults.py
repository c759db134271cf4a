"""Planned failures that the supervisor itself injects: between two attempts, and at a wall-clock
time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.failures.fault_kind import BetweenAttempts, Victim, fault_kind
from ecrl_cli.failures.fault_log import claim, fired_indices, read_fired
from ecrl_cli.failures.plan import pending, read_plan
from ecrl_cli.history.load import load
from ecrl_cli.history.timeline import timeline
from ecrl_cli.linux import processes
from ecrl_cli.linux.clock import monotonic, wall
from ecrl_cli.records.events import Attempt, InjectedFault, PlannedFailure
from ecrl_cli.records.layout import RunLayout

_AGAIN_S = 0.05  # between two attempts to inject a due fault into a rank whose pid is not known yet


def inject_between_attempts(
    layout: RunLayout,
    store: CheckpointStore,
    seed: int,
    earlier: tuple[Attempt, ...],
    *,
    chooses: bool,
) -> None:
    """Inject what is due after the attempts `earlier`, before the next one chooses its checkpoint.
    `chooses`: whether it resumes from one.
    """
    seen = max((a.last_step or 0 for a in earlier), default=0)
    for entry in _left(layout, "rest") if earlier else ():
        if entry.global_step > seen:
            continue
        fault = fault_kind(entry.kind).inject_at_rest(
            BetweenAttempts(layout.root, store, seed + entry.index, chooses)
        )
        if fault and claim(layout, _fired(entry, len(earlier), fault.detail)):
            fault.inject()


def attempts_with_faults(layout: RunLayout) -> frozenset[int]:
    """The attempts in which a planned failure was injected."""
    return frozenset(fired.attempt for fired in read_fired(layout))


class WallClockFaults:
    """Injects failures at wall-clock times of the run.

    `began`: start of this supervisor session (monotonic). `spent_s`: returns the seconds of the
    sessions before it.
    """

    def __init__(
        self, layout: RunLayout, attempt: int, began: float, spent_s: Callable[[], float]
    ) -> None:
        self._layout, self._attempt, self._began = layout, attempt, began
        self._left = list(_left(layout, "wall"))
        self._spent_s = spent_s() if self._left else 0.0

    def left_s(self, now: float) -> float | None:
        """Seconds until `inject_due` must be called next; None if no fault is left."""
        return (
            max(_AGAIN_S, min(self._due_at(entry) for entry in self._left) - now)
            if self._left
            else None
        )

    def inject_due(self, now: float, pids: Mapping[int, int]) -> None:
        """Inject what is due. `pids`: by rank, as far as known; a fault of a rank whose pid is not
        known yet waits until it is.
        """
        for entry in [each for each in self._left if self._due_at(each) <= now]:
            kind = fault_kind(entry.kind)
            pid = os.getpid() if kind.victim is Victim.SUPERVISOR else pids.get(entry.rank)
            if pid is not None and kind.sends is not None:
                self._left.remove(entry)
                if claim(self._layout, _fired(entry, self._attempt)):
                    processes.send(pid, kind.sends)

    def _due_at(self, entry: PlannedFailure) -> float:
        return self._began + entry.seconds - self._spent_s


def supervised_s(layout: RunLayout) -> float:
    """Seconds of all supervisor sessions but the last, killed ones included, measured as for
    goodput.
    """
    return sum(end - start for start, end in timeline(load(layout)).windows[:-1])


def _left(layout: RunLayout, moment: str) -> tuple[PlannedFailure, ...]:
    if not layout.failures.exists():
        return ()
    return tuple(
        entry
        for entry in pending(read_plan(layout), fired_indices(layout))
        if entry.moment == moment
    )


def _fired(entry: PlannedFailure, attempt: int, detail: str = "") -> InjectedFault:
    return InjectedFault(
        entry.index,
        entry.kind,
        entry.rank,
        entry.global_step,
        attempt,
        monotonic(),
        wall(),
        detail=detail,
    )
