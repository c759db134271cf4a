"""Code that a forked process runs until it is killed: the product's save code on torch-free images;
and the points where the kill comes.
"""

from __future__ import annotations

import mmap
import os
import signal
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass

from ecrl_cli.checkpoint.format.names import CRASH_POINTS, MODEL, OPTIMIZER, RNG, TRAIN
from ecrl_cli.checkpoint.store.atomic_install import CrashHook
from ecrl_cli.checkpoint.store.checkpoint_log import save_and_record
from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.checkpoint.writer.server import Writer, die_of
from ecrl_cli.linux.pdeathsig import die_with_parent
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.storage.fs import Fs, PosixFs
from ecrl_cli.studies.crash_points.store_fixture import BACK_TO_BACK, STEP, VICTIM, log_of
from ecrl_cli.studies.frame.store_fixture import Payload, store_config, write_mode
from ecrl_cli.studies.frame.watched_fs import CrashingFs
from ecrl_cli.studies.mutants.registry import STORE_MUTANTS

NONE = "none"  # the reference: no kill
DATA = "data"  # the one file of the single layout, with the step in its name
AFTER_MODEL = f"after_part:{MODEL}"
PUBLISHED = {
    "after_model": AFTER_MODEL,
    "before_manifest": "before_manifest",
    "manifest_partial": "half_manifest",
    "before_commit": "before_commit",
}

_PARTS = tuple(
    f"{kind}:{part}"
    for part in (MODEL, OPTIMIZER, RNG, TRAIN, DATA)
    for kind in ("half_part", "after_part")
)
# Every point's name in protocol order; records store a point as an index into this list.
PHASES = (
    "start",
    CRASH_POINTS[0],
    *_PARTS,
    *(name for name in CRASH_POINTS[1:] if "{part}" not in name),
)


def phase(point: str) -> str:
    """The point's name without the step that a single file's name contains."""
    kind, _, part = point.partition(":")
    return f"{kind}:{DATA}" if part.startswith("step_") else point


def survivor(mode: str, point: str, visited: tuple[str, ...]) -> str:
    """The checkpoint that recovery must find after a kill at `point`, one of the points `visited`
    by such a save: "new" once the checkpoint counts, "previous" before. With a rename that is the
    rename; without, the last byte of the commit record.
    """
    if point == NONE:
        return "new"
    counts = "after_rename" if write_mode(mode).atomic else "after_commit"
    return "new" if visited.index(point) >= visited.index(counts) else "previous"


class CrashPointCounter:
    """The last point that a process has passed, as one byte in memory shared with its parent, so
    never torn.
    """

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


LIMIT_S = 60  # a process still alive then hangs and is killed by SIGALRM


def limit_life(parent: int) -> None:
    """Die with `parent`, the process that forked this one, and after LIMIT_S at the latest."""
    die_with_parent(parent)
    signal.alarm(LIMIT_S)


@dataclass(frozen=True)
class Save:
    """A save to be killed at a named `point`, or before file-system call number `call`. `planted`:
    a bug in the store.
    """

    mode: str
    layout: str
    step: int = STEP
    point: str = NONE
    call: int = -1
    planted: str = ""

    def store(self, run: RunLayout, fs: Fs, crash_point: CrashHook) -> CheckpointStore:
        if not self.planted:
            return CheckpointStore(run.checkpoints, store_config(self.mode), fs, crash_point)
        planted = next(planted for planted in STORE_MUTANTS if planted.name == self.planted)
        return planted.store(run.checkpoints, store_config(self.mode), fs, crash_point)


def save_once(run: RunLayout, save: Save, payload: Payload, passed: CrashPointCounter) -> None:
    """One save by rank 0 of the blocking strategy, in the rank's own process."""
    fs = CrashingFs(save.call)
    store = save.store(run, fs, lambda name: passed.die_at(save.point, name))
    store.claim(VICTIM)
    fs.armed = True
    save_and_record(store, payload.image(save.layout, save.step), VICTIM, log_of(run, VICTIM))


def serve(run: RunLayout, save: Save, passed: CrashPointCounter, listener: socket.socket) -> None:
    """The background writer of the overlapped strategy, built as by
    `supervision.launch.writer_main`.
    """
    threading.excepthook = die_of
    store = save.store(run, PosixFs(), lambda name: passed.die_at(save.point, name))
    Writer(run, store, listener).serve()


def save_back_to_back(
    run: RunLayout, save: Save, payload: Payload, passed: CrashPointCounter, begin: int
) -> None:
    """Save repeatedly, from `save.step` on; writes a byte to `begin` after the first save, which is
    the slowest.

    Waits for the kill when all saves are done.
    """
    store = save.store(run, PosixFs(), passed.note)
    store.claim(VICTIM)
    log = log_of(run, VICTIM)
    for number in range(BACK_TO_BACK):
        save_and_record(store, payload.image(save.layout, save.step + number), VICTIM, log)
        if number == 0:
            os.write(begin, b"b")
    with suppress(InterruptedError):
        signal.pause()
