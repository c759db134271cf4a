"""The process that mounts file systems and shuts them down while they are saved to, in a private
mount namespace. It gets lines of JSON.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy  # noqa: F401  imported here once, where every forked process would

import ecrl_cli.checkpoint.format.tensor_table  # noqa: F401  likewise
from ecrl_cli.config.codec import decode, encode
from ecrl_cli.errors import EcrlError, shown
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.linux.namespaces import private_mounts
from ecrl_cli.linux.pdeathsig import die_with_parent
from ecrl_cli.studies.frame.child import JsonProgram, serve
from ecrl_cli.studies.power_loss.disk_mounts import (
    LoopDevice,
    cut_off,
    make_filesystem,
    mount,
    sync_disk,
    unmount,
)
from ecrl_cli.studies.power_loss.real_blocks import Blocks, BlocksTrial
from ecrl_cli.studies.power_loss.real_process import (
    TORCH_SUBJECTS,
    Answer,
    Saver,
    Who,
    outcome_of,
    recover,
)


@dataclass(frozen=True)
class ShutdownTrial:
    """`block`: trials with the same one share a file system. `delay_s`: from the first
    acknowledgement to the power loss.
    """

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
        """Mount again; only durable data comes back, as the file system's page cache goes with the
        mount.
        """
        unmount(self.place)
        mount(self._device.path, self.place, self.kind)

    def close(self) -> None:
        unmount(self.place)
        self._device.close()
        os.close(self._disk)


class Shutdowns:
    """`scratch` is on another file system; the disks are mounted in it, visible only to this
    process and its children.
    """

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
            raise EcrlError(
                "power-loss",
                f"the saving process ended before the power loss: {error}",
                "report this",
            )
        dead = _is_dead(disk.place)
        disk.power_cycle()
        # Only acknowledgements before the power loss count: during an XFS shutdown an fsync may
        # return although its log record is lost.
        told, late = saver.told(moment), saver.told(math.inf)
        return {
            **_found(recover(trial.who, folder), told, late + 1),
            "late": late - told,
            "phase": phase,
            "cut": dead,
        }

    def refusal(self, kind: str) -> int | None:
        """The errno with which a file system of that kind refuses a shutdown; None if it does
        not.
        """
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


_DEADLINE_S = 300.0


class Rig:
    """The study's handle of the rig. `scratch`: an empty folder for the mount points."""

    def __init__(self, scratch: Path) -> None:
        # in its own process session: Ctrl-C is handled by the study
        self._program = JsonProgram(
            "ecrl_cli.studies.power_loss.real_rig",
            str(scratch),
            str(os.getpid()),
            start_new_session=True,
        )

    def shutdown(self, trial: ShutdownTrial) -> dict[str, Any]:
        return self._ask("shutdown", encode(trial))

    def blocks(self, trial: BlocksTrial) -> dict[str, Any]:
        return self._ask("blocks", encode(trial))

    def probe(self, kind: str) -> dict[str, Any]:
        """`error`: why a file system of that kind cannot be made and mounted here (empty: it can).
        `refusal`: errno with which its shutdown fails (None: it works).
        """
        return self._ask("probe", kind)

    def close(self) -> None:
        """End the process; its mounts and loop devices go with it."""
        self._program.close(kill=True)

    def _ask(self, what: str, value: object) -> dict[str, Any]:
        try:
            answer = self._program.ask([what, value], _DEADLINE_S)
        except (EOFError, TimeoutError) as error:
            raise EcrlError("power-loss", str(error), "look at what it printed") from error
        if "defect" in answer:
            raise EcrlError("power-loss", answer["defect"], "report this")
        return answer


class _Server:
    """The rig process's side."""

    def __init__(self, scratch: Path) -> None:
        self._scratch, self._prepared = scratch, set[str]()
        self._shutdowns, self._blocks = Shutdowns(scratch), Blocks(scratch)

    def answer(self, what: str, value: Any) -> dict[str, Any]:
        if what == "probe":
            return self._probe(value)
        if what == "shutdown":
            shutdown = decode(ShutdownTrial, value)
            self._prepare(shutdown.who)
            found = self._shutdowns.run(shutdown)
        else:
            blocks = decode(BlocksTrial, value)
            self._prepare(blocks.who)
            found = self._blocks.run(blocks)
        return {**found, "kernel": os.uname().release}

    def _probe(self, kind: str) -> dict[str, Any]:
        try:
            return {"error": "", "refusal": self._shutdowns.refusal(kind)}
        except (OSError, EcrlError) as error:
            return {"error": str(error), "refusal": None}

    def _prepare(self, who: Who) -> None:
        """Import torch once here, so that forked processes need not."""
        if who.subject in TORCH_SUBJECTS and who.subject not in self._prepared:
            from ecrl_cli.studies.power_loss.subject_torch import prepare

            prepare(self._scratch / f"prepare-{who.subject}", who.subject)
            self._prepared.add(who.subject)


def main(argv: list[str]) -> None:
    scratch, parent = Path(argv[0]), int(argv[1])
    die_with_parent(parent)
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of children must not mix with replies
    private_mounts()
    server = _Server(scratch)

    def answer(request: list[Any]) -> object:
        try:
            return server.answer(*request)
        except (OSError, EcrlError) as error:
            return {"defect": f"{type(error).__name__}: {shown(str(error), 300)}"}

    serve(answer, replies)


if __name__ == "__main__":
    main(sys.argv[1:])
