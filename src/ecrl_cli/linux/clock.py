"""Clocks: monotonic time, wall time, processor time, and the id of the boot that the monotonic
clock belongs to.
"""

from __future__ import annotations

import time
from pathlib import Path

from ecrl_cli.errors import InputError

_TRIES, _CLOSE_S = 20, 0.001
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def monotonic() -> float:
    """CLOCK_MONOTONIC in seconds: the same for every process of one boot."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def both_clocks() -> tuple[float, float]:
    """(`monotonic`, `wall`) read at about the same instant: within 1 ms, retried at most 20 times
    where the process was descheduled in between.
    """
    for _ in range(_TRIES):
        before, time_, after = monotonic(), wall(), monotonic()
        if after - before < _CLOSE_S:
            break
    return after, time_


def processor() -> float:
    """Processor seconds of this process, over all its threads."""
    return time.process_time()


def wall() -> float:
    """Unix time in seconds. Recorded to cross-check `monotonic`; no figure is computed from it."""
    return time.time()


def boot_id() -> str:
    """The kernel's id of the current boot: monotonic times are comparable only within one boot.
    InputError where there is no /proc/sys.
    """
    try:
        return BOOT_ID.read_text(encoding="utf-8").strip()
    except OSError as error:
        fact = (
            f"{BOOT_ID} cannot be read ({error.strerror}): the clock of a run is known by its boot"
        )
        raise InputError("machine", fact, "mount /proc with its folder sys") from error
