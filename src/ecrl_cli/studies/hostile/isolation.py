"""Runs one read in a process of its own that is certain to end and returns only its result."""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import Any

import psutil

from ecrl_cli.studies.frame.child import forked

ROOM = 2 * 2**30  # bytes of address space beyond the current use, so that a decompression bomb cannot exhaust the machine


def isolated(act: Callable[[], dict[str, Any]], seconds: float, room: int = ROOM) -> dict[str, Any]:
    """The result of `act` in a forked child; outcome `hung` if it takes longer than `seconds`, `untyped` if it dies.

    `room`: additional bytes it may allocate (0: unlimited, for programs with libraries of their own).
    """

    def limited() -> dict[str, Any]:
        if room:
            most = psutil.Process().memory_info().vms + room
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
        return act()

    found, end = forked(limited, seconds)
    if end:
        outcome, reason = ("hung", f"no answer within {seconds:g} s") if end == "hung" else ("untyped", "the process died")
        return {"outcome": outcome, "by": "nobody", "reason": reason}
    answer: dict[str, Any] = found
    return answer
