"""What a forked process runs until it is killed: the product's save code on torch-free images."""

from __future__ import annotations

import os
import signal
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass

from ecrl_cli.checkpoint.store.atomic_install import Points
from ecrl_cli.checkpoint.store.save_and_log import save_and_record
from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.checkpoint.writer.server import Writer, die_of
from ecrl_cli.linux.pdeathsig import die_with_parent
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.storage.fs import Fs, PosixFs
from ecrl_cli.studies.crash_points.crashing_fs import CrashingFs
from ecrl_cli.studies.crash_points.points import NONE, CrashPointCounter
from ecrl_cli.studies.crash_points.store_fixture import BACK_TO_BACK, STEP, VICTIM, Payload, image_of, log_of, store_config
from ecrl_cli.studies.mutants.registry import PLANTED

LIMIT_S = 60  # a process still alive then hangs and is killed by SIGALRM


def mortal(parent: int) -> None:
    """Die with `parent`, the process that forked this one, and after LIMIT_S at the latest."""
    die_with_parent(parent)
    signal.alarm(LIMIT_S)


@dataclass(frozen=True)
class Save:
    """A save to be killed at a named `point`, or before file-system call number `call`. `planted`: a bug in the store."""

    mode: str
    layout: str
    step: int = STEP
    point: str = NONE
    call: int = -1
    planted: str = ""

    def store(self, run: RunLayout, fs: Fs, points: Points) -> CheckpointStore:
        if not self.planted:
            return CheckpointStore(run.checkpoints, store_config(self.mode), fs, points)
        planted = next(planted for planted in PLANTED if planted.name == self.planted)
        return planted.store(run.checkpoints, store_config(self.mode), fs, points)


def save_once(run: RunLayout, save: Save, payload: Payload, passed: CrashPointCounter) -> None:
    """One save by rank 0 of the blocking strategy, in the rank's own process."""
    fs = CrashingFs(run.checkpoints, save.call)
    store = save.store(run, fs, lambda name: passed.die_at(save.point, name))
    store.claim(VICTIM)
    fs.armed = True
    save_and_record(store, image_of(payload, save.layout, save.step), VICTIM, log_of(run, VICTIM))


def serve(run: RunLayout, save: Save, passed: CrashPointCounter, listener: socket.socket) -> None:
    """The background writer of the overlapped strategy, built as by `supervision.launch.writer_main`."""
    threading.excepthook = die_of
    store = save.store(run, PosixFs(), lambda name: passed.die_at(save.point, name))
    Writer(run, store, listener).serve()


def save_back_to_back(run: RunLayout, save: Save, payload: Payload, passed: CrashPointCounter, begin: int) -> None:
    """Save repeatedly, from `save.step` on; writes a byte to `begin` after the first save, which is the slowest.

    Waits for the kill when all saves are done.
    """
    store = save.store(run, PosixFs(), passed.note)
    store.claim(VICTIM)
    log = log_of(run, VICTIM)
    for number in range(BACK_TO_BACK):
        save_and_record(store, image_of(payload, save.layout, save.step + number), VICTIM, log)
        if number == 0:
            os.write(begin, b"b")
    with suppress(InterruptedError):
        signal.pause()
