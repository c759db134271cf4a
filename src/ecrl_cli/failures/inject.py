"""Arms the plan inside one rank. The step loop asks at each boundary; nothing of a failure stands in the path it strikes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ecrl_cli.failures.fired import claim
from ecrl_cli.failures.kinds import STRIKES
from ecrl_cli.records.clock import monotonic, wall
from ecrl_cli.records.events import Fired, PlannedFailure
from ecrl_cli.records.launch import LaunchOrder
from ecrl_cli.records.layout import RunLayout


class Injector:
    """The failures that may still strike in this attempt, seen from one rank."""

    def __init__(self, layout: RunLayout, attempt: int, rank: int, pending: tuple[PlannedFailure, ...]) -> None:
        self._layout, self._attempt, self._rank = layout, attempt, rank
        self._at_step = {entry.global_step: entry for entry in pending if entry.moment == "boundary"}

    def at_boundary(self, global_step: int, flush: Callable[[], None]) -> None:
        """Strike what is planned behind `global_step`; every rank calls this, at the same step.

        `flush` is the strategy's, and collective: where the kind asks for it, all ranks take part, and only then is the entry claimed
        (so that a claim is at most an instant older than its blow). The victim does not return.
        """
        entry = self._at_step.get(global_step)
        if entry is None:
            return
        strike = STRIKES[entry.kind]
        if strike.flushes:
            flush()
        if entry.rank == self._rank and self._claim(entry):
            strike.blow()

    def at_start(self, moment: str, order: LaunchOrder) -> None:
        """Before the rank meets the others (rendezvous), or loads (load)."""

    def attach(self, model: Any, optimizer: Any, pack: Any) -> None:
        """What the failures inside a step strike through: the unwrapped model, its optimizer, the state that is captured."""

    def before_step(self, global_step: int) -> None:
        """Arm what is planned inside `global_step`."""

    def before_save(self, global_step: int) -> None:
        """Arm what is planned while the checkpoint of `global_step` is captured."""

    def _claim(self, entry: PlannedFailure) -> bool:
        fired = Fired(entry.index, entry.kind, self._rank, entry.global_step, self._attempt, monotonic(), wall())
        return claim(self._layout, fired)
