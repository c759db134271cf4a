"""What ranks and their supervisor tell each other over the control socket: JSON lines, one object each, with a `kind`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hello:
    """First message of every rank: who it is, so that its death is noticed at once. `at`: its first instant (monotonic).

    `stacks`: the number of its descriptor of a memory file into which it writes what its threads do when it is asked; -1: none.
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
    """Why a rank is about to end: one line, and whether it is the user's input (exit code 2) that is wrong.

    `spoilt`: whether what the others have in memory is no good either, for they have exchanged gradients with it.
    """

    rank: int
    text: str
    exit_code: int
    kind: str = "trouble"
    spoilt: bool = False


@dataclass(frozen=True)
class LeftAttempt:
    """From a rank that outlived others: it has left its attempt behind `global_step`, with its state in memory, and waits for an Assignment on
    this connection. Its records are durable. `alive`: who was left, as it knows."""

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
    """From the supervisor, to one who has left or stands by: be `rank` of `attempt`, whose launch.json is there; say Hello on a new connection.

    `prefix`: under which the attempt keeps its keys in the store. Where the connection ends instead, there is nothing more to do.
    """

    attempt: int
    rank: int
    prefix: str
    kind: str = "assignment"
