"""The clocks: monotonic, wall, processor time, and the boot they belong to."""

from __future__ import annotations

import time
from pathlib import Path

_TRIES, _CLOSE_S = 20, 0.001


def monotonic() -> float:
    """CLOCK_MONOTONIC in seconds: the same for every process of one boot."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def both_clocks() -> tuple[float, float]:
    """One instant by `monotonic` and by `wall`. Read again, a few times at most, where the process was held up between the two."""
    for _ in range(_TRIES):
        before, time_, after = monotonic(), wall(), monotonic()
        if after - before < _CLOSE_S:
            break
    return after, time_


def processor() -> float:
    """Processor seconds of this process, all its threads: how long what only computes would take alone."""
    return time.process_time()


def wall() -> float:
    """Unix time in seconds: recorded as a witness of `monotonic`; no figure comes from it."""
    return time.time()


def boot_id() -> str:
    """Names the boot whose monotonic clock is meant."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
