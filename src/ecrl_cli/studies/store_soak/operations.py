"""The random program: operations on the store and the faults that may hit each, drawn from a seed;
and clocks that jump.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from ecrl_cli.storage.fault_injecting_fs import SHORT


class JumpingClock:
    """Replaces the module `time` where the product reads clocks."""

    CLOCK_MONOTONIC = time.CLOCK_MONOTONIC

    def __init__(self) -> None:
        self._now, self._pace = 1e9, 1e-6

    def jump(self, salt: int) -> None:
        """Set the clock to any time and pace, including standing still and running backwards."""
        rng = random.Random(salt)
        self._now, self._pace = rng.uniform(0, 4e9), rng.choice((0.0, 1e-6, -1.0, 3600.0))

    def time(self) -> float:
        return self.clock_gettime(0)

    def clock_gettime(self, which: int) -> float:
        self._now += self._pace
        return self._now


# The operations, with their shares of a program.
SHARES = {
    "save": 30,  # by the writer, pointers and retention included
    "hand over": 8,  # a save that waits in the queue (overlapped)
    "write": 6,  # the writer does the next save in the queue
    # the rank or all processes are dead: a new attempt claims the store, chooses, quarantines
    "restart": 14,
    "late": 3,  # a supervisor of an older attempt claims
    "zombie": 8,  # a writer of an older attempt resumes
    "retire": 4,
    "verify": 8,
    "damage": 9,
    "clock": 5,
    "power": 5,
}
WORLDS = (1, 2, 4)
FAULTS = ("EIO", "ENOSPC", "EDQUOT", "EROFS", "EMFILE", "ENOMEM", "ESTALE", SHORT)
SCOPES = {"any": 40, "write": 45, "sync": 45, "open": 30, "read": 40, "change": 15, "close": 15}
# operations that can be interrupted or hit by a fault
TROUBLED = ("save", "write", "restart", "retire")
# a newer attempt may start between their calls; the run lock (study writers) prevents two
# supervisors at once
MET = ("save", "write")
DAMAGES = ("flip", "cut", "empty", "zero", "remove")


@dataclass(frozen=True)
class Op:
    """`trouble`: kill (SIGKILL), O or X (power loss under that model) before the modifying call
    number `at`; rival (a newer attempt acts there); or the kind of fault at the `at`-th call in
    `scope`, with `sticky` at all later calls too. `detail`, `number`: arguments of `do`.
    """

    do: str
    trouble: str = ""
    at: int = 0
    scope: str = ""
    sticky: bool = False
    detail: str = ""
    number: int = 0

    def __str__(self) -> str:
        words = [self.do, self.detail, str(self.number) if self.number else ""]
        if self.scope:
            words.append(
                f"({self.trouble}{' for ever' if self.sticky else ''} from {self.scope} call"
                f" {self.at} on)"
            )
        elif self.trouble:
            words.append(f"({self.trouble} before call {self.at})")
        return " ".join(word for word in words if word)


def program(rng: random.Random, length: int) -> tuple[Op, ...]:
    """A program of `length` operations."""
    return tuple(
        _drawn(rng, do) for do in rng.choices(list(SHARES), list(SHARES.values()), k=length)
    )


def unrivalled(ops: Sequence[Op]) -> tuple[Op, ...]:
    """`ops` without concurrent writers of two attempts, as planted bugs without fencing must not be
    found that way.
    """
    return tuple(
        replace(op, trouble="") if op.trouble == "rival" else op for op in ops if op.do != "zombie"
    )


def encoded(ops: Sequence[Op]) -> list[dict[str, Any]]:
    """The operation as JSON, without default values."""
    plain = Op("")
    return [
        {key: value for key, value in asdict(op).items() if value != getattr(plain, key)}
        for op in ops
    ]


def decoded(texts: Sequence[dict[str, Any]]) -> tuple[Op, ...]:
    """The inverse of `encoded`. Raises TypeError for other input."""
    known = {each.name for each in fields(Op)}
    if unknown := [key for text in texts for key in text if key not in known]:
        raise TypeError(f"an operation has no {unknown[0]}")
    return tuple(Op(**text) for text in texts)


def _drawn(rng: random.Random, do: str) -> Op:
    detail, number = "", 0
    if do == "restart":
        detail, number = rng.choice(("rank, drained", "rank", "all")), rng.choice(WORLDS)
    elif do == "damage":
        detail, number = rng.choice(DAMAGES), rng.randrange(1 << 20)
    elif do in ("clock", "power"):
        detail, number = rng.choice("OX") if do == "power" else "", rng.randrange(1, 1 << 20)
    op = Op(do, detail=detail, number=number)
    return _troubled(rng, op) if do in TROUBLED and rng.random() < 0.55 else op


def _troubled(rng: random.Random, op: Op) -> Op:
    kind = rng.choices(
        ("kill", "O", "X", "rival", "fault"), (30, 10, 20, 15 if op.do in MET else 0, 25)
    )[0]
    if kind == "fault":
        scope = rng.choice(list(SCOPES))
        fault = SHORT if scope == "write" and rng.random() < 0.3 else rng.choice(FAULTS[:-1])
        return Op(
            op.do,
            fault,
            rng.randrange(1, SCOPES[scope]),
            scope,
            rng.random() < 0.4,
            op.detail,
            op.number,
        )
    most = 12 if op.do == "restart" else 52
    return Op(op.do, kind, rng.randrange(most), "", False, op.detail, op.number)
