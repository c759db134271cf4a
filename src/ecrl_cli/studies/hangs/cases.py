"""The cases and their expected results: one function per thing that stops, dies, leaks or resumes
late.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import psutil

from ecrl_cli.config.schema import RunConfig, SupervisionConfig
from ecrl_cli.linux import processes
from ecrl_cli.records.events import RankLine
from ecrl_cli.records.journal import read_journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.studies.fake_ranks.fake_rank import FakeRankScript
from ecrl_cli.studies.fake_ranks.supervisor_harness import (
    LIMIT_S,
    START_S,
    SupervisorHarness,
    SupervisorOutcome,
    Trigger,
    TriggeringUI,
    lineage_whole,
    settings,
    whole,
)
from ecrl_cli.studies.frame.limits import remaining
from ecrl_cli.supervision.watch.hang_detector import SAVING

STEPS = 40
GONE_WITHIN_S = 2.0
ANSWER_S = 60.0  # for a process with a single task left
IN_LIMITS = 3.0  # hangs must be detected within this many limits
FEW = 6  # steps: with fewer in an attempt the step time may be unknown
WRITER = "ecrl_cli.supervision.launch.writer_main"
Found = dict[str, Any]


@dataclass(frozen=True)
class HangCase:
    """`run` returns the result, with whether it was `good`."""

    what: str
    run: Callable[[SupervisorHarness, random.Random], Found]


def _ended(ending: SupervisorOutcome, layout: RunLayout) -> Found:
    """The result fields of every trial."""
    hung = [attempt for attempt in ending.attempts if attempt["outcome"] == "hung"]
    hangs = [attempt["hang"] for attempt in hung]
    return {
        "code": ending.code,
        "outcomes": [attempt["outcome"] for attempt in ending.attempts],
        "blamed": hangs[0]["ranks"] if hangs else None,
        "found_after": max((_found_after(layout, attempt) for attempt in hung), default=0.0),
        "stacks": all(layout.attempt(attempt["attempt"]).stacks(0).exists() for attempt in hung),
        "left": ending.left,
        "lineage": lineage_whole(layout),
        "said": ending.said,
    }


def _found_after(layout: RunLayout, attempt: Mapping[str, Any]) -> float:
    """The longest time without a step by any rank, in hang limits, from the ranks' own logs rather
    than the supervisor's. It ends with the attempt, or with the step of a rank that was resumed to
    dump its stack.
    """
    logs = layout.attempt(attempt["attempt"])
    lines = [
        [line.at for line in read_journal(logs.rank(rank), RankLine).events]
        for rank in range(attempt["world_size"])
    ]
    times = sorted(at for each in lines for at in each) or [attempt["launched_at"]]
    began, ended = max(
        pairwise([*times, attempt["ended_at"]]), key=lambda stretch: stretch[1] - stretch[0]
    )
    silent_s: float = ended - began
    return silent_s / _limit(
        [at for at in lines[0] if at <= began], attempt["hang"]["phase"] in SAVING
    )


def _limit(lines: Sequence[float], saving: bool) -> float:
    """The hang limit of an attempt whose rank 0 did its steps at these times; a save, like a start,
    has START_S.
    """
    if len(lines) < FEW:
        return START_S
    return max(
        START_S if saving else LIMIT_S,
        SupervisionConfig().hang_factor * max(after - before for before, after in pairwise(lines)),
    )


def rank_fault(
    what: str, victims: tuple[int, ...], expected: str
) -> Callable[[SupervisorHarness, random.Random], Found]:
    """`victims` do `what` at a random step of the first attempt; the second attempt completes."""

    def run(harness: SupervisorHarness, rng: random.Random) -> Found:
        step, config = rng.randrange(8, STEPS), settings(STEPS)
        with harness.run(
            config, FakeRankScript(faults={f"0/{rank}/{step}": what for rank in victims})
        ) as layout:
            found = _ended(harness.supervise(config, layout, TriggeringUI()), layout)
        # a rank that skipped is ahead of the others, which cannot be detected
        named = what == "skip" or found["blamed"] == list(victims)
        recovered = (
            found["outcomes"] == [expected, "completed"] and found["code"] == 0 and found["lineage"]
        )
        return found | {
            "good": (
                recovered
                and found["left"] == 0
                and (expected != "hung" or (named and found["stacks"]))
            )
        }

    return run


def writer_stopped(harness: SupervisorHarness, rng: random.Random) -> Found:
    """The background writer is stopped: it is replaced, and the ranks keep training."""
    config = settings(600, every=50, strategy="overlapped")
    with harness.run(config, FakeRankScript(step_s=0.004)) as layout:

        def stop_it() -> None:
            (pid,) = [pid for pid in remaining(layout.root) if WRITER in _command(pid)]
            os.kill(pid, signal.SIGSTOP)

        ending = harness.supervise(
            config, layout, TriggeringUI(Trigger("training", rng.randrange(5, 50)), stop_it)
        )
        found = _ended(ending, layout)
    replaced = [note for note in ending.notes if "writer" in note and "replaced" in note]
    return found | {
        "good": found["outcomes"] == ["completed"] and len(replaced) == 1 and found["left"] == 0
    }


def slow_disk(harness: SupervisorHarness, rng: random.Random) -> Found:
    """A save that takes several times the limit but makes progress: no hang may be reported."""
    config = settings(12, every=6)
    slow = RunConfig(**{**config.__dict__, "storage": config.storage.__class__(bytes_per_s=6000.0)})
    with harness.run(slow, FakeRankScript()) as layout:
        found = _ended(harness.supervise(slow, layout, TriggeringUI()), layout)
    return found | {"good": found["outcomes"] == ["completed"] and found["left"] == 0}


def agent(number: int, expected: list[str]) -> Callable[[SupervisorHarness, random.Random], Found]:
    """torchrun's agent gets signal `number` while its ranks step."""

    def run(harness: SupervisorHarness, rng: random.Random) -> Found:
        config = settings(200, every=20, launcher="torchrun", start_timeout_s=60.0)
        with harness.run(config, FakeRankScript(step_s=0.004)) as layout:

            def inject() -> None:
                os.kill(_agent(layout), number)

            found = _ended(
                harness.supervise(
                    config,
                    layout,
                    TriggeringUI(Trigger("training", rng.randrange(10, 40)), inject),
                    "torchrun",
                ),
                layout,
            )
        return found | {
            "good": found["outcomes"] == expected and found["left"] == 0 and found["code"] == 0
        }

    return run


def supervisor_killed(harness: SupervisorHarness, rng: random.Random) -> Found:
    """SIGKILL to the supervisor: within two seconds no process of the run is left, and the next
    supervisor resumes.
    """
    config = settings(400, every=20, start_timeout_s=60.0)
    with harness.run(config, FakeRankScript(step_s=0.004)) as layout:
        lone = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "ecrl_cli.studies.hangs.programs",
                "supervise",
                str(layout.root),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert lone.stdout is not None
        with _ended_at_last(lone):
            lone.stdout.readline()  # the run has reached a step
            fds = [
                fd
                for pid in remaining(layout.root)
                if pid != lone.pid and (fd := processes.open_pidfd(pid)) is not None
            ]
        alive = processes.wait_all(fds, GONE_WITHIN_S)
        for fd in fds:
            os.close(fd)
        found = _ended(harness.supervise(config, layout, TriggeringUI()), layout)
    good = (
        len(fds) >= 2
        and not alive
        and found["outcomes"][-1] == "completed"
        and found["lineage"]
        and found["left"] == 0
    )
    return found | {"alive": len(alive), "good": good}


def zombie(harness: SupervisorHarness, rng: random.Random) -> Found:
    """A writer of the first attempt stops before its commit and continues after a newer attempt has
    finished: it is fenced, nothing changes.
    """
    config = settings(STEPS)
    with harness.run(
        config, FakeRankScript(faults={f"0/1/{rng.randrange(8, STEPS)}": "exit1"})
    ) as layout:
        late = subprocess.Popen(
            [sys.executable, "-m", "ecrl_cli.studies.hangs.programs", "write", str(layout.root)],
            stdout=subprocess.PIPE,
            text=True,
        )
        with _ended_at_last(late):
            os.waitid(os.P_PID, late.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            found = _ended(harness.supervise(config, layout, TriggeringUI()), layout)
            before = whole(layout)
            late.send_signal(signal.SIGCONT)
            said, _ = late.communicate(timeout=ANSWER_S)
            after = whole(layout)
    return found | {
        "late": said.strip(),
        "good": (
            said.strip() == "fenced"
            and before == after
            and found["outcomes"] == ["died", "completed"]
        ),
    }


def crash_loop(harness: SupervisorHarness, rng: random.Random) -> Found:
    """The same step fails in every attempt: after two attempts without progress the run ends and
    names the step and the cause.
    """
    step, config = rng.randrange(8, STEPS), settings(STEPS)
    with harness.run(config, FakeRankScript(faults={f"any/0/{step}": "raise"})) as layout:
        found = _ended(harness.supervise(config, layout, TriggeringUI()), layout)
    return found | {
        "good": (found["outcomes"], found["code"], found["left"]) == (["died"] * 3, 7, 0)
    }


def budget(harness: SupervisorHarness, rng: random.Random) -> Found:
    """Each attempt makes a little progress and dies: there are exactly as many attempts as the
    restart budget allows.
    """
    config, allowed = settings(STEPS, every=2), rng.randrange(1, 4)
    config = settings(STEPS, every=2, max_restarts=allowed)
    faults = {f"{attempt}/{attempt % 2}/{9 + 4 * attempt}": "SIGKILL" for attempt in range(6)}
    with harness.run(config, FakeRankScript(faults=faults)) as layout:
        found = _ended(harness.supervise(config, layout, TriggeringUI()), layout)
    return found | {
        "good": (
            (found["outcomes"], found["code"], found["left"]) == (["died"] * (allowed + 1), 7, 0)
        )
    }


def hang_loop(harness: SupervisorHarness, rng: random.Random) -> Found:
    """The same step hangs in every attempt: exit code 6."""
    config = settings(STEPS)
    with harness.run(
        config, FakeRankScript(faults={f"any/1/{rng.randrange(8, STEPS)}": "spin"})
    ) as layout:
        found = _ended(harness.supervise(config, layout, TriggeringUI()), layout)
    return found | {
        "good": (found["outcomes"], found["code"], found["left"]) == (["hung"] * 3, 6, 0)
    }


def overload(harness: SupervisorHarness, rng: random.Random) -> Found:
    """Twice as many busy processes as processors, at the smallest configurable limit: no false
    alarm.
    """
    config = settings(400, every=40)
    busy = [
        subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
        for _ in range(2 * len(os.sched_getaffinity(0)))
    ]
    try:
        with harness.run(config, FakeRankScript()) as layout:
            found = _ended(harness.supervise(config, layout, TriggeringUI()), layout)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    return found | {"good": found["outcomes"] == ["completed"] and found["left"] == 0}


CASES: tuple[HangCase, ...] = (
    HangCase("SIGSTOP of one rank", rank_fault("freeze", (1,), "hung")),
    HangCase("SIGSTOP of rank 0", rank_fault("freeze", (0,), "hung")),
    HangCase("SIGSTOP of all ranks", rank_fault("freeze", (0, 1), "hung")),
    HangCase("asleep with Python's lock", rank_fault("grasp", (1,), "hung")),
    HangCase("spins without progress", rank_fault("spin", (0,), "hung")),
    HangCase("one rank skips a collective", rank_fault("skip", (1,), "hung")),
    HangCase("SIGSEGV", rank_fault("SIGSEGV", (1,), "died")),
    HangCase("SIGABRT", rank_fault("SIGABRT", (0,), "died")),
    HangCase("os._exit(0) early", rank_fault("exit0", (1,), "hung")),
    HangCase("exit 1", rank_fault("exit1", (0,), "died")),
    HangCase("SIGSTOP of the writer", writer_stopped),
    HangCase("a slow disk", slow_disk),
    HangCase("SIGKILL of the agent", agent(signal.SIGKILL, ["died", "completed"])),
    # ranks past the rendezvous do not need it
    HangCase("SIGSTOP of the agent", agent(signal.SIGSTOP, ["completed"])),
    HangCase("SIGKILL of the supervisor", supervisor_killed),
    HangCase("a late writer wakes up", zombie),
    HangCase("the same step raises each time", crash_loop),
    HangCase("the same step hangs each time", hang_loop),
    HangCase("each attempt gains a little and dies", budget),
    HangCase("twice as much work as processors", overload),
)


@contextmanager
def _ended_at_last(process: subprocess.Popen[str]) -> Iterator[None]:
    """The process is always killed and reaped."""
    try:
        yield
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _command(pid: int) -> str:
    try:
        return "\0".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return ""


def _agent(layout: RunLayout) -> int:
    """The one process of the run that started others of it; this one, which started it, is not
    among them.
    """
    there = remaining(layout.root)
    (agent,) = {parent for pid in there if (parent := processes.parent(pid)) in there}
    return agent
