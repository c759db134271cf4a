"""After an attempt: restart or stop, and why. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ecrl_cli.errors import EcrlError, Fenced, Hung, InputError, NoProgress, NoValidCheckpoint, StorageError
from ecrl_cli.records.events import Attempt, SupervisorSession
from ecrl_cli.records.messages import RankError
from ecrl_cli.records.survivor_records import SURVIVED

STORM = 2  # attempts in a row that gain no step
RELAUNCHED = ("died", "hung")
# What a rank may say that no restart would cure: the status and the error that the run ends with, by its exit code.
INCURABLE: dict[int, tuple[str, type[EcrlError]]] = {
    InputError.exit_code: ("refused", InputError),
    NoValidCheckpoint.exit_code: ("gave_up", NoValidCheckpoint),
    StorageError.exit_code: ("gave_up", StorageError),
    Fenced.exit_code: ("gave_up", Fenced),
}


@dataclass(frozen=True)
class Decision:
    """`status` is supervisor.json's terminal_status (running: restart); `error` is what the command ends with, if it stops short."""

    status: str
    reason: str
    error: EcrlError | None = None

    @property
    def restart(self) -> bool:
        return self.status == "running"

    @property
    def exit_code(self) -> int:
        return self.error.exit_code if self.error else 0


def decide(attempts: tuple[Attempt, ...], max_restarts: int, trouble: RankError | None, planned: frozenset[int] = frozenset()) -> Decision:
    """What follows the last of `attempts` (those of `counted`). `trouble`: what its first casualty said before it ended. `planned`: the attempts
    that a planned failure struck.

    A planned change of the world size is no restart and spends none; that one may not happen over and over without a new step, because
    its checkpoint is refused each time, is the storm's business. So is one that ranks outlive over and over without a new step.
    """
    last = attempts[-1]
    if last.outcome == "completed":
        return Decision("completed", "target reached")
    if trouble and trouble.exit_code in INCURABLE:
        status, kind = INCURABLE[trouble.exit_code]
        return Decision(status, trouble.text, kind(f"rank {trouble.rank}", trouble.text))
    why = trouble.text if trouble else death(last)
    if without_gain(attempts, planned) >= STORM:
        reason = f"restart storm: {STORM} attempts in a row gained no step; the last one: {why}"
        return _gave_up(attempts, reason)
    if last.outcome in ("resized", SURVIVED):
        return Decision("running", why)
    if restarts(attempts) >= max_restarts:
        return _gave_up(attempts, f"all {max_restarts} restarts are spent; the last attempt: {why}")
    return Decision("running", why)


def death(attempt: Attempt) -> str:
    """How an attempt ended, in words."""
    if attempt.outcome == "resized":
        return f"{attempt.world_size} ranks ended behind step {attempt.last_step}, a planned change of the world size"
    if attempt.hang:
        return f"hung: {attempt.hang.text}"
    who = "the launcher" if attempt.rank is None else f"rank {attempt.rank}"
    if attempt.signal:
        return f"{who} was killed by signal {attempt.signal}"
    if attempt.exit_code == 0:
        return f"{who} ended before the target was reached"
    return f"{who} ended with exit code {attempt.exit_code}"


def without_gain(attempts: tuple[Attempt, ...], planned: frozenset[int] = frozenset()) -> int:
    """How many attempts at the end did not get past the highest step that any before them had reached.

    One that went down with its supervisor (neither exit code nor signal is known), or that a planned failure struck, is no evidence against
    the job.
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
    """How many attempts follow one that died: a run that was stopped, or resized, and goes on has not been restarted; nor has
    one whose ranks outlived others."""
    return sum(before.outcome in RELAUNCHED for before in attempts[:-1])


def counted(attempts: tuple[Attempt, ...], sessions: tuple[SupervisorSession, ...]) -> tuple[Attempt, ...]:
    """The attempts that the budget counts: those since a person last started the run.

    A supervisor that was killed (no `ended_at`) leaves its budget to its successor; one that ended by itself has said why, and
    whoever starts the run again has read it.
    """
    first = len(sessions) - 1
    while first > 0 and sessions[first - 1].ended_at is None:
        first -= 1
    return tuple(attempt for attempt in attempts if attempt.session >= first)


def _gave_up(attempts: tuple[Attempt, ...], reason: str) -> Decision:
    """A hang that was not recovered where all attempts that gained nothing at the end, or the last one, hung."""
    last, row = attempts[-1], attempts[-max(1, without_gain(attempts)) :]
    if all(attempt.outcome == "hung" for attempt in row):
        remedy = f"read the stacks in logs/attempt-{last.attempt:02d}, then start the run again"
        return Decision("gave_up", reason, Hung("supervision", reason, remedy))
    remedy = f"read logs/attempt-{last.attempt:02d}/output.log, then start the run again"
    return Decision("gave_up", reason, NoProgress("supervision", reason, remedy))
