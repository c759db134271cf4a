"""Runs one read in a process of its own that is certain to end and returns only its result."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
from collections.abc import Callable
from typing import Any

ROOM = 2 * 2**30  # bytes of address space beyond the current use, so that a decompression bomb cannot exhaust the machine


def isolated(act: Callable[[], dict[str, Any]], seconds: float, room: int = ROOM) -> dict[str, Any]:
    """The result of `act` in a forked child; outcome `hung` if it takes longer than `seconds`, `untyped` if it dies.

    `room`: additional bytes it may allocate (0: unlimited, for programs with libraries of their own).
    """
    back, out = os.pipe()
    child = os.fork()
    if child == 0:
        _in_child(act, out, room)
    os.close(out)
    try:
        return _answer(back, seconds)
    finally:
        os.close(back)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _in_child(act: Callable[[], dict[str, Any]], out: int, room: int) -> None:
    try:
        with open("/proc/self/statm") as file:
            size = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        if room:
            resource.setrlimit(resource.RLIMIT_AS, (size + room, size + room))
        os.write(out, json.dumps(act()).encode() + b"\n")
    finally:
        os._exit(0)


def _answer(back: int, seconds: float) -> dict[str, Any]:
    data = b""
    while not data.endswith(b"\n"):
        if not select.select([back], [], [], seconds)[0]:
            return {"outcome": "hung", "by": "nobody", "reason": f"no answer within {seconds:g} s"}
        piece = os.read(back, 65536)
        if not piece:
            return {"outcome": "untyped", "by": "nobody", "reason": "the process died"}
        data += piece
    found: dict[str, Any] = json.loads(data)
    return found
