"""Detects ranks that slow the others down without hanging: reported, never killed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from ecrl_cli.records.events import Straggler
from ecrl_cli.records.heartbeat_table import Heartbeat

FACTOR, FLOOR_S = 2.0, 0.02
IN_A_ROW = 5  # observations, without the first steps of an attempt, which warm up


class StragglerDetector:
    """Compares the ranks' own seconds of work in their last step, before they waited for any other rank."""

    def __init__(self, resume_step: int) -> None:
        self._step = resume_step + 2
        self._slow: dict[int, int] = {}
        self.found: list[Straggler] = []

    def check(self, beats: Mapping[int, Heartbeat]) -> list[Straggler]:
        """The ranks found to be stragglers for the first time in this attempt."""
        step = min((beat.global_step for beat in beats.values()), default=0)
        if len(beats) < 2 or step <= self._step:
            return []
        self._step = step
        new = [found for rank in sorted(beats) if (found := self._judge(rank, step, beats)) is not None]
        self.found += new
        return new

    def _judge(self, rank: int, step: int, beats: Mapping[int, Heartbeat]) -> Straggler | None:
        own, others = beats[rank].own_s, median(beat.own_s for other, beat in beats.items() if other != rank)
        self._slow[rank] = self._slow.get(rank, 0) + 1 if own > FACTOR * others + FLOOR_S else 0
        if self._slow[rank] != IN_A_ROW or any(known.rank == rank for known in self.found):
            return None
        return Straggler(rank, step, own, others)
