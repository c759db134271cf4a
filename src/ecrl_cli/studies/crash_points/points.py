"""The points at which a writer is killed: which occur where, what they were called in print, and what survives a death there."""

from __future__ import annotations

import mmap
import os
import signal

from ecrl_cli.checkpoint.format.names import CRASH_POINTS, MODEL, OPTIMIZER, RNG, TRAIN
from ecrl_cli.studies.frame.write_modes import write_mode

NONE = "none"  # the reference: nobody is killed
DATA = "data"  # the one file of the single layout, whose name has the step in it
AFTER_MODEL = f"after_part:{MODEL}"
PUBLISHED = {"after_model": AFTER_MODEL, "before_manifest": "before_manifest", "manifest_partial": "half_manifest", "before_commit": "before_commit"}

_PARTS = tuple(f"{kind}:{part}" for part in (MODEL, OPTIMIZER, RNG, TRAIN, DATA) for kind in ("half_part", "after_part"))
# Every name that a point can have, in the order of the protocol; a death is on record as a number in this list.
PHASES = ("start", CRASH_POINTS[0], *_PARTS, *(name for name in CRASH_POINTS[1:] if "{part}" not in name))


def phase(point: str) -> str:
    """The point's name without the step that a single file's name contains."""
    kind, _, part = point.partition(":")
    return f"{kind}:{DATA}" if part.startswith("step_") else point


def survivor(mode: str, point: str, visited: tuple[str, ...]) -> str:
    """What recovery must find after a death at `point`, one of the points `visited` by such a save: "new" from the moment on which the
    checkpoint counts, "previous" before. With a rename that moment is the rename; without, the commit record's last byte."""
    if point == NONE:
        return "new"
    counts = "after_rename" if write_mode(mode).atomic else "after_commit"
    return "new" if visited.index(point) >= visited.index(counts) else "previous"


class CrashPointCounter:
    """The last point that a process has passed, in memory that it shares with the one who forked it: one byte, so never half written."""

    def __init__(self) -> None:
        self._byte = mmap.mmap(-1, 1)
        self._numbers = {name: number for number, name in enumerate(PHASES)}

    def reset(self) -> None:
        self._byte[0] = 0

    def note(self, point: str) -> None:
        self._byte[0] = self._numbers.get(phase(point), 0)

    @property
    def last(self) -> str:
        return PHASES[self._byte[0]]

    def die_at(self, point: str, name: str) -> None:
        """The hook for the store's `points`: at `point`, no further."""
        self.note(name)
        if phase(name) == point:
            os.kill(os.getpid(), signal.SIGKILL)
