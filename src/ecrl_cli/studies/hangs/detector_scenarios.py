"""Runs the hang detector under a simulated clock: slow jobs, hung jobs, and clocks that jump."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ecrl_cli.records.heartbeat_table import Heartbeat
from ecrl_cli.studies.mutants import override
from ecrl_cli.supervision.watch.hang_detector import HangDetector, HangTimeouts

LIMITS = HangTimeouts(start_s=60.0, timeout_s=2.0, factor=10.0)
SLOW_STEPS = 1000
Make = Callable[[float], HangDetector]


def product(now: float) -> HangDetector:
    return HangDetector(LIMITS, 0, now)


class _Lockstep:
    """Two ranks in lockstep, polled as often as the supervisor polls."""

    def __init__(self, make: Make) -> None:
        self.now, self.alarms = 1000.0, 0
        self.beats = [Heartbeat(0, "nowhere", 0.0, 0.0, 0)] * 2
        self.writer = Heartbeat(0, "done", 0.0, 0.0, 0)
        self.detector = make(self.now)

    def put(self, step: int, phase: str) -> None:
        self.beats = [Heartbeat(step, phase, self.now, 0.0, beat.beats + 1) for beat in self.beats]

    def passes(self, seconds: float, *, writer_moves: bool = False) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += LIMITS.check_every_s
            if writer_moves:
                self.writer = Heartbeat(0, "saving", self.now, 0.0, self.writer.beats + 1)
            self.alarms += self.detector.check(self.now, self.beats, self.writer)

    def step(self, number: int, seconds: float) -> None:
        for phase in ("forward", "backward", "update", "logging"):
            self.put(number, phase)
            self.passes(seconds / 4)


def slow(make: Make, rng: random.Random) -> int:
    """Number of false alarms in 1,000 steps of varying length, one longer than the timeout but
    within the limit for such steps.
    """
    job, typical = _Lockstep(make), rng.uniform(0.3, 4.0)
    job.step(1, 10 * typical)
    for number in range(2, SLOW_STEPS + 2):
        job.step(number, typical * (2.0 if number == SLOW_STEPS // 2 else rng.uniform(0.5, 2.0)))
        if rng.random() < 0.02:
            job.passes(typical * 2.5)
        if number == SLOW_STEPS // 2:
            job.passes((LIMITS.timeout_s + 1.5 * typical * LIMITS.factor) / 2)
    return job.alarms


def suspended(make: Make, rng: random.Random) -> int:
    """Number of false alarms when the supervisor is suspended for hours now and then."""
    job = _Lockstep(make)
    for number in range(1, 50):
        job.step(number, 0.5)
        if rng.random() < 0.3:
            job.now += rng.uniform(60.0, 36_000.0)
            job.alarms += job.detector.check(job.now, job.beats, job.writer)
    return job.alarms


def standing(make: Make, rng: random.Random) -> float | None:
    """A hung job whose writer is still active: after how many times its limit it is detected; None:
    never.
    """
    job, seconds = _Lockstep(make), rng.uniform(0.05, 1.0)
    for number in range(1, rng.randrange(3, 30)):
        job.step(number, seconds)
    job.put(40, "backward")
    limit, began = job.detector.limit_s, job.now
    while not job.alarms and job.now < began + 5 * limit:
        job.passes(LIMITS.check_every_s, writer_moves=True)
    return (job.now - began) / limit if job.alarms else None


class TrustsTheClock(HangDetector):
    """Planted bug: counts time since the last change even while not polling, as if comparing the
    rank's clock with its own.
    """

    @override
    def check(
        self, now: float, ranks: Sequence[Heartbeat], writer: Heartbeat | None = None
    ) -> bool:
        super().check(now, ranks, writer)
        return self.quiet.waited_s >= self.limit_s


class NeverLearns(HangDetector):
    """Planted bug: a fixed timeout, however long steps take."""

    @property
    @override
    def limit_s(self) -> float:
        return LIMITS.timeout_s if self.longest_step_s else LIMITS.start_s


class HearsTheWriterAlways(HangDetector):
    """Planted bug: counts any activity as progress."""

    @override
    def check(
        self, now: float, ranks: Sequence[Heartbeat], writer: Heartbeat | None = None
    ) -> bool:
        self._learn(now, ranks)
        return self.quiet.check(now, (*ranks, writer)) >= self.limit_s


@dataclass(frozen=True)
class DetectorMutant:
    """A broken detector and the scenario that it fails."""

    name: str
    make: type[HangDetector]
    scenario: str

    def shown(self, rng: random.Random) -> bool:
        def made(now: float) -> HangDetector:
            return self.make(LIMITS, 0, now)

        if self.scenario == "standing":
            found = standing(made, rng)
            return found is None or found > 3
        return bool((slow if self.scenario == "slow" else suspended)(made, rng))


DETECTOR_MUTANTS = (
    DetectorMutant("counts time in which it did not look", TrustsTheClock, "suspended"),
    DetectorMutant("a timeout that does not adapt", NeverLearns, "slow"),
    DetectorMutant("takes the writer's life for the ranks'", HearsTheWriterAlways, "standing"),
)
