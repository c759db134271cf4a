"""One trial of the shutdown arm: repeated saves on a private file system, which is shut down at a moment drawn beforehand; then recovery."""

from __future__ import annotations

import math
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ecrl_cli.errors import EcrlError
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.studies.power_loss.disk_mounts import LoopDevice, cut_off, make_filesystem, mount, sync_disk, unmount
from ecrl_cli.studies.power_loss.real_process import Answer, Saver, Who, outcome_of, recover


@dataclass(frozen=True)
class ShutdownTrial:
    """`block`: trials with the same one share a file system. `delay_s`: from the first acknowledgement to the power loss."""

    who: Who
    fs: str
    block: int
    delay_s: float


class _Disk:
    """The file system of one block, mounted from its first trial to its last."""

    def __init__(self, kind: str, block: int, place: Path) -> None:
        self.kind, self.block, self.place = kind, block, place
        place.mkdir(exist_ok=True)
        self._disk = make_filesystem(kind)
        self._device = LoopDevice(self._disk)
        mount(self._device.path, place, kind)

    def power_cycle(self) -> None:
        """Mount again; only durable data comes back, as the file system's page cache goes with the mount."""
        unmount(self.place)
        mount(self._device.path, self.place, self.kind)

    def close(self) -> None:
        unmount(self.place)
        self._device.close()
        os.close(self._disk)


class Shutdowns:
    """`scratch` is on another file system; the disks are mounted in it, visible only to this process and its children."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._disks: dict[str, _Disk] = {}

    def run(self, trial: ShutdownTrial) -> dict[str, Any]:
        disk = self._disk(trial.fs, trial.block)
        folder = disk.place / "run"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        sync_disk(disk.place)
        saver = Saver(trial.who, folder)
        try:
            saver.wait_for_first()
            time.sleep(trial.delay_s)
            alive, phase, moment = saver.alive(), saver.phase, monotonic()
            cut_off(disk.place, self._scratch)
        finally:
            error = saver.stop()
        if not alive:
            raise EcrlError("power-loss", f"the saving process ended before the power loss: {error}", "report this")
        dead = _is_dead(disk.place)
        disk.power_cycle()
        # Only acknowledgements before the power loss count: during an XFS shutdown an fsync may return although its log record is lost.
        told, late = saver.told(moment), saver.told(math.inf)
        return {**_found(recover(trial.who, folder), told, late + 1), "late": late - told, "phase": phase, "cut": dead}

    def refusal(self, kind: str) -> int | None:
        """The errno with which a file system of that kind refuses a shutdown; None if it does not."""
        disk = _Disk(kind, 0, self._scratch / f"try-{kind}")
        try:
            cut_off(disk.place, self._scratch)
        except OSError as error:
            return error.errno
        finally:
            disk.close()
        return None

    def _disk(self, kind: str, block: int) -> _Disk:
        old = self._disks.get(kind)
        if old is not None and old.block == block:
            return old
        if old is not None:
            old.close()
        self._disks[kind] = disk = _Disk(kind, block, self._scratch / kind)
        return disk


def _found(answer: Answer, acknowledged: int, started: int) -> dict[str, Any]:
    recovered = answer.recovered
    return {
        "outcome": outcome_of(answer, acknowledged, started),
        "acknowledged": acknowledged,
        "recovered": recovered.step if recovered else None,
        "refused": recovered.refused if recovered else 0,
        "goes_on": recovered.goes_on if recovered else None,
        "error": answer.error,
    }


def _is_dead(place: Path) -> bool:
    """Whether the file system rejects writes, as it must after the shutdown."""
    try:
        (place / "probe").mkdir()
    except OSError:
        return True
    return False
