"""Messages between ranks and supervisor on the control socket: JSON lines, one object each, with a `kind`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hello:
    """First message of every rank: it identifies the connection, so that the rank's death is noticed at once. `at`: the process's first instant
    (monotonic).

    `stacks`: the descriptor number of the memory file for its stack dump on request; -1: none.
    """

    rank: int
    pid: int
    attempt: int
    at: float
    kind: str = "hello"
    stacks: int = -1


@dataclass(frozen=True)
class Progress:
    """From rank 0, after each step and at each change of phase (starting, loading, training, saving, flushing, done)."""

    global_step: int
    phase: str
    at: float
    loss: float | None = None
    kind: str = "progress"


@dataclass(frozen=True)
class RankError:
    """Why a rank is about to exit: one line of text, and the exit code (2: the user's input is wrong).

    `peers_corrupted`: the state in the other ranks' memory is unusable too, because they exchanged gradients with this rank.
    """

    rank: int
    text: str
    exit_code: int
    kind: str = "trouble"
    peers_corrupted: bool = False


@dataclass(frozen=True)
class LeftAttempt:
    """From a surviving rank: it left its attempt after `global_step` with its state in memory and waits for an Assignment on this connection.

    Its records are durable. `alive`: the surviving ranks, as far as it knows.
    """

    rank: int
    pid: int
    attempt: int
    global_step: int
    alive: tuple[int, ...]
    kind: str = "left"


@dataclass(frozen=True)
class SpareReady:
    """First message of a warm spare: it has imported and loaded what it can, and waits for an Assignment on this connection."""

    pid: int
    kind: str = "standby"


@dataclass(frozen=True)
class Assignment:
    """From the supervisor to a surviving rank or a spare: become `rank` of `attempt`, whose launch.json exists; send Hello on a new connection.

    `prefix`: prefix of the attempt's keys in the store. If the connection ends instead, there is nothing more to do.
    """

    attempt: int
    rank: int
    prefix: str
    kind: str = "assignment"
