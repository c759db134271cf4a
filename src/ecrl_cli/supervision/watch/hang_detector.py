"""Detects hangs, diagnoses which ranks caused them, and reports stragglers. Pure: it gets
heartbeats and the time.

Ranks move in lockstep: one that stands still stops all others within a step. So an attempt hangs if
no heartbeat has changed for longer than a step may take. Heartbeats are written by the training
loop itself: a thread beside it would keep beating while the loop hangs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ecrl_cli.config.schema import SupervisionConfig
from ecrl_cli.records.events import Hang, Straggler
from ecrl_cli.records.heartbeat_table import PHASES, Heartbeat

RECENT = 100  # number of step times kept
_DONE = PHASES.index("logging")  # from this phase on, the step itself is done
# phases in which one system call, or one hash, may take longer than many steps
SAVING = ("saving", "flushing", "done")
_BESIDE_STEPS = ("evaluating", *SAVING)  # time that says nothing about how long a step takes
_STOPPED = {"T": "stopped", "t": "held by a debugger", "D": "stuck in the kernel (state D)"}
_COLLECTIVE = ("backward", "evaluating", "saving", "rendezvous")

FACTOR, FLOOR_S = 2.0, 0.02
IN_A_ROW = 5  # observations, without the first steps of an attempt, which warm up


@dataclass(frozen=True)
class HangTimeouts:
    """Seconds without progress that count as a hang.

    `start_s` until a step after the first, which warms up, has shown how long steps take; then the
    greater of `timeout_s` and `factor` times the longest step.
    """

    start_s: float
    timeout_s: float
    factor: float

    @classmethod
    def of(cls, config: SupervisionConfig) -> HangTimeouts:
        return cls(config.start_timeout_s, config.hang_timeout_s, config.hang_factor)

    @property
    def check_every_s(self) -> float:
        """Check interval in seconds: short enough to find a hang within 1.25 times its limit."""
        return min(1.0, self.timeout_s / max(4.0, 2 * self.factor))

    @property
    def counted_s(self) -> float:
        """The most that a single check may add to a stall, in seconds."""
        return max(2 * self.check_every_s, self.timeout_s / 4)


class StallTimer:
    """How long a value has not changed, counting only time in which it was checked.

    A supervisor that was suspended or waited for a processor has seen nothing, and a machine that
    slept has stopped all processes.
    """

    def __init__(self, counted_s: float, now: float) -> None:
        self._most, self._checked_at, self._changed = counted_s, now, now
        self._before: object = None
        self.seconds = 0.0

    def check(self, now: float, current: object) -> float:
        """Record the `current` value; returns the seconds of the stall so far."""
        self.seconds = (
            self.seconds + min(now - self._checked_at, self._most)
            if current == self._before
            else 0.0
        )
        self._changed = self._changed if current == self._before else now
        self._before, self._checked_at = current, now
        return self.seconds

    @property
    def waited_s(self) -> float:
        """Seconds from the last change to the last check, including time in which nothing was
        checked.
        """
        return self._checked_at - self._changed


class HangDetector:
    """Detects hangs from the heartbeats of the ranks, and of the writer while ranks may be waiting
    for it. `held`: whether a rank is known to be stopped.
    """

    def __init__(self, limits: HangTimeouts, resume_step: int, now: float) -> None:
        self._limits, self._first = limits, resume_step
        self.quiet = StallTimer(limits.counted_s, now)
        self._done, self._checked_at, self._spent_s = resume_step, now, 0.0
        self._steps: deque[float] = deque(maxlen=RECENT)
        self.held = self._patient = False

    def check(
        self, now: float, ranks: Sequence[Heartbeat], writer: Heartbeat | None = None
    ) -> bool:
        """Whether nothing has moved for the allowed time. A save is allowed as much as a start,
        unless a rank is `held`.
        """
        self._learn(now, ranks)
        waiting = any(beat.phase in SAVING for beat in ranks)
        self._patient = not self.held and min(ranks, key=_order).phase in SAVING
        return self.quiet.check(now, (*ranks, writer if waiting else None)) >= self.limit_s

    def forgive(self) -> None:
        """Restart the stall timer: the cause of the stall has been removed."""
        self.quiet.seconds = 0.0

    @property
    def limit_s(self) -> float:
        """The limit that applied at the last check."""
        return self.save_limit_s if self._patient else self.step_limit_s

    @property
    def save_limit_s(self) -> float:
        return max(self._limits.start_s, self.step_limit_s)

    @property
    def step_limit_s(self) -> float:
        if not self._steps:
            return max(self._limits.start_s, self._limits.timeout_s)
        return max(self._limits.timeout_s, self._limits.factor * self.longest_step_s)

    @property
    def longest_step_s(self) -> float:
        """The longest of the kept step times; 0 if there is none."""
        return max(self._steps, default=0.0)

    def _learn(self, now: float, ranks: Sequence[Heartbeat]) -> None:
        """Measure the time from one step that all ranks have done to the next, without saves and
        evaluations (which may take any time) and without time between late checks.
        """
        done = min(steps_done(beat) for beat in ranks)
        self._spent_s += min(now - self._checked_at, self._limits.counted_s)
        self._checked_at = now
        if any(beat.phase in _BESIDE_STEPS for beat in ranks):
            self._done, self._spent_s = max(done, self._done), 0.0
        elif done > self._done:
            if self._done > self._first:  # the first step of an attempt warms up
                new = done - self._done
                self._steps.extend([self._spent_s / new] * min(new, RECENT))
            self._done, self._spent_s = done, 0.0


def steps_done(beat: Heartbeat) -> int:
    """The last step that the rank has done; -1 before it has begun any."""
    return beat.global_step if PHASES.index(beat.phase) >= _DONE else beat.global_step - 1


@dataclass(frozen=True)
class HangDiagnosis:
    """Facts about a hang. `beats`: by rank, as far as visible. `states`: by rank that has sent
    Hello, the state letter of /proc/PID/stat. `launcher`: that of the process between the
    supervisor and the ranks.
    """

    waited_s: float
    limit_s: float
    beats: Mapping[int, Heartbeat]
    states: Mapping[int, str]
    launcher: str = ""

    def hang(self) -> Hang:
        """The ranks to blame: those that have gone (with exit code 0, else the death would have
        been noticed) or are stopped; else a stopped launcher; else the ranks that are behind the
        others; else none.
        """
        gone = tuple(rank for rank in sorted(self.beats) if self.states.get(rank, "S") in ("", "Z"))
        if gone:
            return self._of(
                gone,
                f"{named_ranks(gone)} gone, without an error, in {_place(self.beats[gone[0]])}",
            )
        stopped = tuple(
            rank for rank in sorted(self.beats) if self.states.get(rank, "") in _STOPPED
        )
        if stopped:
            how = _STOPPED[self.states[stopped[0]]]
            return self._of(
                stopped, f"{named_ranks(stopped)} {how} in {_place(self.beats[stopped[0]])}"
            )
        if self.launcher in _STOPPED:
            return self._of((), f"the launcher's process is {_STOPPED[self.launcher]}")
        least, most = min(map(_order, self.beats.values())), max(map(_order, self.beats.values()))
        if least != most:
            behind = tuple(rank for rank in sorted(self.beats) if _order(self.beats[rank]) == least)
            there = next(beat for beat in self.beats.values() if _order(beat) == most)
            return self._of(
                behind,
                f"{named_ranks(behind)} in {_place(self.beats[behind[0]])}, the others wait in"
                f" {_place(there)}",
            )
        return self._of((), self._no_blamed_rank())

    def _no_blamed_rank(self) -> str:
        beat = next(iter(self.beats.values()))
        who = "the only rank is" if len(self.beats) == 1 else f"all {len(self.beats)} ranks are"
        why = (
            "the network between them, or a deadlock"
            if len(self.beats) > 1 and beat.phase in _COLLECTIVE
            else "nobody is behind the others"
        )
        return f"{who} in {_place(beat)}" + (f": {why}" if len(self.beats) > 1 else "")

    def _of(self, ranks: tuple[int, ...], text: str) -> Hang:
        beat = self.beats[ranks[0]] if ranks else min(self.beats.values(), key=_order)
        waited = f"nothing moved for {self.waited_s:.1f} s (limit {self.limit_s:.1f} s)"
        return Hang(
            ranks, beat.phase, beat.global_step, self.waited_s, self.limit_s, f"{text}; {waited}"
        )


def _order(beat: Heartbeat) -> tuple[int, int]:
    return beat.global_step, PHASES.index(beat.phase)


def named_ranks(ranks: tuple[int, ...]) -> str:
    return f"rank {ranks[0]} is" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} are"


def _place(beat: Heartbeat) -> str:
    return place_of(beat.phase, beat.global_step)


def place_of(phase: str, global_step: int) -> str:
    """Where a rank is, in words."""
    if phase == "nowhere":
        return "the start"
    return f"{phase} of step {global_step}" if global_step else phase


class StragglerDetector:
    """Finds ranks that slow the others down without hanging: compares their own seconds of work in
    the last step, before they waited for others.
    """

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
        new = [
            found for rank in sorted(beats) if (found := self._judge(rank, step, beats)) is not None
        ]
        self.found += new
        return new

    def _judge(self, rank: int, step: int, beats: Mapping[int, Heartbeat]) -> Straggler | None:
        own, others = (
            beats[rank].own_s,
            median(beat.own_s for other, beat in beats.items() if other != rank),
        )
        self._slow[rank] = self._slow.get(rank, 0) + 1 if own > FACTOR * others + FLOOR_S else 0
        if self._slow[rank] != IN_A_ROW or any(known.rank == rank for known in self.found):
            return None
        return Straggler(rank, step, own, others)
