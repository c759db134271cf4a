"""What counts as a hang, whom it is blamed on, who only straggles: by a clock of the test's own."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ecrl_cli.records.heartbeat_table import Heartbeat
from ecrl_cli.supervision.watch.hang_detector import (
    HangDetector,
    HangDiagnosis,
    HangTimeouts,
    StragglerDetector,
)

LIMITS = HangTimeouts(start_s=60.0, timeout_s=2.0, factor=10.0)
TICK = LIMITS.check_every_s
NOWHERE = Heartbeat(0, "nowhere", 0.0, 0.0, 0)


class Job:
    """Ranks on a fake board, and a detector that looks at them every TICK of a fake clock."""

    def __init__(self, ranks: int = 2, limits: HangTimeouts = LIMITS) -> None:
        self.now, self.beats, self.writer = 1000.0, [NOWHERE] * ranks, NOWHERE
        self.detector = HangDetector(limits, 0, self.now)
        self.looked = self.now
        self.alarms = 0

    def put(self, rank: int, step: int, phase: str) -> None:
        self.beats[rank] = Heartbeat(step, phase, self.now, 0.0, self.beats[rank].beats + 1)

    def all_put(self, step: int, phase: str) -> None:
        for rank in range(len(self.beats)):
            self.put(rank, step, phase)

    def passes(self, seconds: float) -> bool:
        """Let time go by; whether a hang was seen meanwhile."""
        end, before = self.now + seconds, self.alarms
        while self.looked + TICK <= end:
            self.look(self.looked + TICK)
        self.now = end
        return self.alarms > before

    def look(self, now: float) -> None:
        self.looked = now
        self.alarms += self.detector.check(now, self.beats, self.writer)

    def step(self, number: int, seconds: float) -> None:
        for phase in ("forward", "backward", "update", "logging"):
            self.all_put(number, phase)
            self.passes(seconds / 4)

    def until_alarm(self) -> float:
        began = self.now
        while not self.passes(TICK):
            assert self.now < began + 10_000
        return self.now - began


def started(steps: int = 5, seconds: float = 0.5, ranks: int = 2) -> Job:
    job = Job(ranks)
    for number in range(1, steps + 1):
        job.step(number, seconds)
    return job


def test_a_job_that_stands_still_is_found_within_its_limit_and_a_look_or_two() -> None:
    job = started(seconds=0.5)
    assert job.detector.limit_s == pytest.approx(10 * 0.5, rel=0.2)
    assert job.detector.limit_s <= job.until_alarm() + 1e-9 <= 1.5 * job.detector.limit_s


def test_where_steps_are_short_the_timeout_counts() -> None:
    job = started(steps=50, seconds=0.01)
    assert job.detector.limit_s == 2.0
    assert job.until_alarm() <= 2.0 + 2 * TICK


def test_no_false_alarm_in_a_thousand_slow_but_alive_steps() -> None:
    job, random_ = Job(), random.Random(5)
    job.step(1, 30.0)
    for number in range(2, 1002):
        job.step(number, random_.uniform(1.5, 6.0))
        if random_.random() < 0.05:
            job.passes(9.0)  # as long as several steps, and several times the timeout
    assert job.alarms == 0
    assert job.passes(3 * job.detector.limit_s), "and it still sees one that stands still"


def test_before_the_first_step_is_done_the_start_may_take_its_time() -> None:
    job = Job()
    for phase in ("importing", "rendezvous", "loading", "forward"):
        job.all_put(0 if phase != "forward" else 1, phase)
        assert not job.passes(59.0)
    assert job.passes(3.0)


def test_a_rank_that_never_appears_is_a_hang_too() -> None:
    job = Job()
    job.put(0, 0, "importing")
    assert not job.passes(59.0)
    assert job.passes(3.0)


def test_the_first_step_and_saves_do_not_stretch_the_limit() -> None:
    job = Job()
    job.step(1, 40.0)
    job.all_put(1, "saving")
    job.passes(1.9)
    for number in range(2, 6):
        job.step(number, 0.1)
    assert job.detector.limit_s == 2.0


def test_a_slow_disk_is_no_hang_while_the_writer_moves() -> None:
    job = started()
    job.all_put(6, "saving")
    for _ in range(60):
        job.writer = replace(job.writer, beats=job.writer.beats + 1)
        assert not job.passes(1.0)
    assert job.passes(3 * job.detector.limit_s)


def test_a_writer_that_moves_hides_no_hang_of_ranks_that_do_not_wait_for_it() -> None:
    job = started()
    job.all_put(6, "backward")
    for _ in range(60):
        job.writer = replace(job.writer, beats=job.writer.beats + 1)
        job.passes(1.0)
    assert job.alarms


def test_a_supervisor_that_was_suspended_has_seen_no_silence() -> None:
    job = started()
    job.look(job.now + 3600.0)
    job.now = job.looked
    assert job.alarms == 0
    job.all_put(6, "forward")
    assert not job.passes(1.0)


def test_a_step_during_which_nobody_looked_does_not_stretch_the_limit() -> None:
    job = started()
    before = job.detector.limit_s
    job.look(job.now + 3600.0)
    job.now = job.looked
    job.step(6, 0.5)
    assert job.detector.limit_s < before + 10 * LIMITS.counted_s + 1.0


def test_a_save_gets_the_time_of_a_start_and_whoever_is_behind_it_does_not() -> None:
    job = started()
    job.all_put(6, "saving")
    assert not job.passes(59.0) and job.passes(3.0)
    job = started()
    job.put(0, 6, "saving")
    job.put(1, 6, "logging")
    assert job.passes(10.0)


def test_the_limit_follows_the_steps_as_they_become_shorter() -> None:
    job = started(steps=20, seconds=2.0)
    assert job.detector.limit_s == pytest.approx(20.0, rel=0.2)
    for number in range(21, 200):
        job.step(number, 0.05)
    assert job.detector.limit_s == 2.0


def at(step: int, phase: str) -> Heartbeat:
    return Heartbeat(step, phase, 0.0, 0.0, 1)


BLAME: list[tuple[tuple[Heartbeat, ...], dict[int, str], str, tuple[int, ...], str]] = [
    (
        (at(9, "backward"), at(9, "backward")),
        {0: "S", 1: "T"},
        "S",
        (1,),
        "rank 1 is stopped in backward of step 9",
    ),
    (
        (at(9, "forward"), at(9, "forward")),
        {0: "T", 1: "T"},
        "S",
        (0, 1),
        "ranks 0, 1 are stopped in forward of step 9",
    ),
    (
        (at(9, "backward"), at(9, "update")),
        {0: "S", 1: ""},
        "S",
        (1,),
        "rank 1 is gone, without an error, in update of step 9",
    ),
    (
        (at(9, "saving"), at(9, "saving")),
        {0: "D", 1: "S"},
        "S",
        (0,),
        "rank 0 is stuck in the kernel (state D) in saving of step 9",
    ),
    (
        (at(9, "backward"), at(9, "forward")),
        {0: "S", 1: "R"},
        "S",
        (1,),
        "rank 1 is in forward of step 9, the others wait in backward of step 9",
    ),
    (
        (at(9, "backward"), at(8, "logging")),
        {0: "S", 1: "S"},
        "S",
        (1,),
        "rank 1 is in logging of step 8",
    ),
    (
        (at(0, "rendezvous"), NOWHERE),
        {0: "S"},
        "S",
        (1,),
        "rank 1 is in the start, the others wait in rendezvous",
    ),
    (
        (at(9, "backward"),) * 2,
        {0: "S", 1: "S"},
        "S",
        (),
        "all 2 ranks are in backward of step 9: the network between them, or a deadlock",
    ),
    ((at(0, "rendezvous"),) * 2, {0: "S", 1: "S"}, "T", (), "the launcher's process is stopped"),
    ((at(9, "forward"),), {0: "R"}, "S", (), "the only rank is in forward of step 9"),
]


def test_who_is_to_blame() -> None:
    for beats, states, launcher, ranks, words in BLAME:
        hang = HangDiagnosis(31.0, 30.0, dict(enumerate(beats)), states, launcher).hang()
        assert (hang.ranks, hang.waited_s, hang.limit_s) == (ranks, 31.0, 30.0)
        assert hang.text.startswith(words), hang.text
        assert hang.text.endswith("; nothing moved for 31.0 s (limit 30.0 s)")
        blamed = beats[ranks[0]] if ranks else beats[0]
        assert (hang.phase, hang.global_step) == (blamed.phase, blamed.global_step)


def seen(watch: StragglerDetector, step: int, *own_s: float) -> list[int]:
    return [
        one.rank
        for one in watch.check(
            {
                rank: Heartbeat(step, "update", 0.0, seconds, step)
                for rank, seconds in enumerate(own_s)
            }
        )
    ]


def test_a_straggler_is_named_once_after_several_slow_steps() -> None:
    watch = StragglerDetector(0)
    named = [seen(watch, step, 0.01, 0.08, 0.01) for step in range(1, 20)]
    assert [name for name in named if name] == [[1]]
    (one,) = watch.found
    assert (one.rank, one.own_s, one.others_s) == (1, 0.08, 0.01)


def test_a_little_slower_is_no_straggler() -> None:
    for own_s in ((0.01, 0.028), (0.1, 0.19), (0.1, 0.1), (0.0, 0.0)):
        watch = StragglerDetector(0)
        assert not any(seen(watch, step, *own_s) for step in range(1, 50))


def test_a_hiccup_now_and_then_is_no_straggler() -> None:
    watch = StragglerDetector(0)
    for step in range(1, 60):
        # four in a row are not enough
        assert not seen(watch, step, 0.01, 0.5 if step % 5 else 0.01)


def test_one_look_at_a_step_is_one_observation() -> None:
    watch = StragglerDetector(0)
    assert not any(seen(watch, 7, 0.01, 0.5) for _ in range(50))
