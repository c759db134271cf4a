"""Decides after each attempt whether to restart or to stop, and why. Pure functions."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from ecrl_cli.errors import (
    EcrlError,
    Fenced,
    Hung,
    InputError,
    NoProgress,
    NoValidCheckpoint,
    StorageError,
)
from ecrl_cli.records.events import TARGET_REACHED, Attempt, SupervisorSession
from ecrl_cli.records.messages import RankError
from ecrl_cli.records.survivor_records import SURVIVED

STORM = 2  # attempts in a row that gain no step
# Signals that a process does not die of by a fault of its own.
OUTSIDE = (
    signal.SIGKILL,
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
RELAUNCHED = ("died", "hung")
# Errors of a rank that a restart cannot fix: by the rank's exit code, the terminal status of the
# run and the error that it ends with.
INCURABLE: dict[int, tuple[str, type[EcrlError]]] = {
    InputError.exit_code: ("refused", InputError),
    NoValidCheckpoint.exit_code: ("gave_up", NoValidCheckpoint),
    StorageError.exit_code: ("gave_up", StorageError),
    Fenced.exit_code: ("gave_up", Fenced),
}


@dataclass(frozen=True)
class Decision:
    """`status`: supervisor.json's terminal_status (running: restart). `error`: the exception that
    ends the command; None unless the run stops short.
    """

    status: str
    reason: str
    error: EcrlError | None = None

    @property
    def restart(self) -> bool:
        return self.status == "running"

    @property
    def exit_code(self) -> int:
        return self.error.exit_code if self.error else 0


def decide(
    attempts: tuple[Attempt, ...],
    max_restarts: int,
    trouble: RankError | None,
    planned: frozenset[int] = frozenset(),
    words: str = "",
) -> Decision:
    """Decides how the run continues after the last of `attempts`, which are those that
    `charged_attempts` returns.

    `trouble`: the error that the first casualty reported before it ended. `planned`: the attempts
    in which a planned failure was injected. `words`: what the last attempt printed last, where it
    reported no error.

    A planned change of the world size is not a restart and does not count against `max_restarts`;
    neither does an in-place recovery. If these repeat without a new step, for example because the
    checkpoint is rejected each time, the restart-storm rule ends the run.
    """
    last = attempts[-1]
    if last.outcome == "completed":
        return Decision("completed", TARGET_REACHED)
    if trouble and trouble.exit_code in INCURABLE:
        status, kind = INCURABLE[trouble.exit_code]
        return Decision(status, trouble.text, kind(f"rank {trouble.rank}", trouble.text))
    why = trouble.text if trouble else death(last) + (f": {words}" if words else "")
    if without_gain(attempts, planned) >= STORM:
        reason = f"restart storm: {STORM} attempts in a row gained no step; the last one: {why}"
        return _gave_up(attempts, reason + _from_outside(attempts[-STORM:], planned))
    if last.outcome in ("resized", SURVIVED):
        return Decision("running", why)
    if restarts(attempts) >= max_restarts:
        spent = (
            f"all {max_restarts} restarts are spent"
            if max_restarts > 1
            else "its only restart is spent"
            if max_restarts
            else "no restart is allowed"
        )
        return _gave_up(attempts, f"{spent}; the last attempt: {why}")
    return Decision("running", why)


def _from_outside(row: tuple[Attempt, ...], planned: frozenset[int]) -> str:
    """Note that none of these attempts ended by itself: a signal ended each that only somebody else
    sends and that no planned failure sent; else empty.
    """
    if any(
        attempt.signal not in OUTSIDE or attempt.outcome == "hung" or attempt.attempt in planned
        for attempt in row
    ):
        return ""
    names = sorted({signal.Signals(attempt.signal).name for attempt in row if attempt.signal})
    return (
        f"; {' and '.join(names)} came from outside the run: from a person, a scheduler or the"
        " kernel's out-of-memory killer"
    )


def death(attempt: Attempt) -> str:
    """How an attempt ended, as text."""
    if attempt.outcome == "resized":
        return (
            f"{attempt.world_size} ranks ended after step {attempt.last_step}, a planned change of"
            " the world size"
        )
    if attempt.hang:
        return f"hung: {attempt.hang.text}"
    who = "the launcher" if attempt.rank is None else f"rank {attempt.rank}"
    if attempt.signal:
        return f"{who} was killed by signal {attempt.signal}"
    if attempt.exit_code == 0:
        return f"{who} ended before the target was reached"
    return f"{who} ended with exit code {attempt.exit_code}"


def without_gain(attempts: tuple[Attempt, ...], planned: frozenset[int] = frozenset()) -> int:
    """How many attempts in a row at the end did not get past the highest step reached before.

    Not counted: an attempt that ended with its supervisor (exit code and signal unknown), and one
    in which a planned failure was injected. Neither says anything about the job.
    """
    highest, row = 0, 0
    for attempt in attempts:
        gained = (attempt.last_step or 0) > highest
        highest = max(highest, attempt.last_step or 0)
        unseen = attempt.exit_code is None and attempt.signal is None and attempt.outcome != "hung"
        blameless = unseen or attempt.attempt in planned
        row = 0 if gained else row + (not blameless)
    return row


def restarts(attempts: tuple[Attempt, ...]) -> int:
    """How many attempts follow one that died or hung. Resuming after a stop, a change of the world
    size or an in-place recovery is no restart.
    """
    return sum(before.outcome in RELAUNCHED for before in attempts[:-1])


def charged_attempts(
    attempts: tuple[Attempt, ...], sessions: tuple[SupervisorSession, ...]
) -> tuple[Attempt, ...]:
    """The attempts that count against `max_restarts`: those since a person last started the run.

    A killed supervisor (no `ended_at`) passes its restart budget on to its successor. One that
    ended by itself reported why, and starting the run again starts a new budget.
    """
    first = len(sessions) - 1
    while first > 0 and sessions[first - 1].ended_at is None:
        first -= 1
    return tuple(attempt for attempt in attempts if attempt.session >= first)


def _gave_up(attempts: tuple[Attempt, ...], reason: str) -> Decision:
    """Give up: with Hung if all attempts without gain at the end (or the last one) hung, else with
    NoProgress.
    """
    last, row = attempts[-1], attempts[-max(1, without_gain(attempts)) :]
    if all(attempt.outcome == "hung" for attempt in row):
        remedy = f"read the stacks in logs/attempt-{last.attempt:02d}, then start the run again"
        return Decision("gave_up", reason, Hung("supervision", reason, remedy))
    remedy = f"read logs/attempt-{last.attempt:02d}/output.log, then start the run again"
    return Decision("gave_up", reason, NoProgress("supervision", reason, remedy))
