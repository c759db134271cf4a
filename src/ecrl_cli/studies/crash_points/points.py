"""The points at which a writer is killed: which occur when, their published names, and what survives a kill there."""

from __future__ import annotations

import mmap
import os
import signal

from ecrl_cli.checkpoint.format.names import CRASH_POINTS, MODEL, OPTIMIZER, RNG, TRAIN
from ecrl_cli.studies.frame.write_modes import write_mode

NONE = "none"  # the reference: no kill
DATA = "data"  # the one file of the single layout, with the step in its name
AFTER_MODEL = f"after_part:{MODEL}"
PUBLISHED = {"after_model": AFTER_MODEL, "before_manifest": "before_manifest", "manifest_partial": "half_manifest", "before_commit": "before_commit"}

_PARTS = tuple(f"{kind}:{part}" for part in (MODEL, OPTIMIZER, RNG, TRAIN, DATA) for kind in ("half_part", "after_part"))
# Every point's name in protocol order; records store a point as an index into this list.
PHASES = ("start", CRASH_POINTS[0], *_PARTS, *(name for name in CRASH_POINTS[1:] if "{part}" not in name))


def phase(point: str) -> str:
    """The point's name without the step that a single file's name contains."""
    kind, _, part = point.partition(":")
    return f"{kind}:{DATA}" if part.startswith("step_") else point


def survivor(mode: str, point: str, visited: tuple[str, ...]) -> str:
    """What recovery must find after a kill at `point`, one of the points `visited` by such a save: "new" once the checkpoint counts, "previous"
    before. With a rename that is the rename; without, the last byte of the commit record."""
    if point == NONE:
        return "new"
    counts = "after_rename" if write_mode(mode).atomic else "after_commit"
    return "new" if visited.index(point) >= visited.index(counts) else "previous"


class CrashPointCounter:
    """The last point that a process has passed, as one byte in memory shared with its parent, so never torn."""

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
        """A hook for the store's `points` that kills the process at `point`."""
        self.note(name)
        if phase(name) == point:
            os.kill(os.getpid(), signal.SIGKILL)
