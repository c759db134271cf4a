"""What a rank tells its supervisor over the control socket: JSON lines, one object each, with a `kind`."""

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
class Trouble:
    """Why a rank is about to end: one line, and whether it is the user's input (exit code 2) that is wrong."""

    rank: int
    text: str
    exit_code: int
    kind: str = "trouble"
