"""The two arms on real file systems: `shutdown` (shut down while saving) and `blocks` (crash points of the disk's write log)."""

from __future__ import annotations

import ctypes.util
import errno
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ecrl_cli.config.schema import LAYOUTS
from ecrl_cli.config.studies import PowerLoss
from ecrl_cli.studies.frame.checkpointers import lacking
from ecrl_cli.studies.frame.store_fixture import Payload
from ecrl_cli.studies.frame.study import Skip, StudyContext, Trial
from ecrl_cli.studies.power_loss.disk_mounts import DISKS
from ecrl_cli.studies.power_loss.real_blocks import BlocksTrial
from ecrl_cli.studies.power_loss.real_process import TORCH_SUBJECTS, Who
from ecrl_cli.studies.power_loss.real_rig import Rig, ShutdownTrial
from ecrl_cli.studies.power_loss.subject_store import PLANTS, SETTLED

_BLOCK_PLANTS = ("no_root_sync", "no_file_sync")


@dataclass(frozen=True)
class Subject:
    """A subject of the rig: see `real_process.Who`."""

    name: str
    layout: str = ""
    variant: str = ""

    @property
    def key(self) -> str:
        return "/".join(filter(None, (self.name, self.layout, self.variant)))

    @property
    def facts(self) -> dict[str, str]:
        return {"subject": self.name, "layout": self.layout, "variant": self.variant}


class RealArms:
    """Mounts nothing in this process; a rig process, started with the first trial, does."""

    def __init__(self, setting: StudyContext) -> None:
        self._setting = setting
        study = setting.config.study
        assert isinstance(study, PowerLoss)
        self._study = study
        self._rigs: dict[bool, Rig] = {}

    def plan(self) -> Sequence[Trial]:
        return [*self._shutdowns(), *self._blocks()]

    def skips(self) -> Sequence[Skip]:
        absent = [Skip(f"shutdown: {subject}", reason) for subject in TORCH_SUBJECTS if (reason := lacking(subject)) and self._looked.shutdown]
        return [*self._looked.skips, *absent]

    def run(self, trial: Trial) -> dict[str, Any]:
        facts, rng, study = trial.facts, self._setting.rng(trial.key), self._study
        payload = Payload(rng.randrange(2**32), study.real_model_bytes, study.real_optimizer_bytes)
        who = Who(facts["subject"], facts["layout"], facts["variant"], payload)
        rig = self._started(torch=who.subject in TORCH_SUBJECTS)
        if facts["arm"] == "blocks":
            return rig.blocks(BlocksTrial(who, facts["fs"], study.real_states, rng.randrange(2**32)))
        delay = rng.uniform(0.0, study.real_window_s)
        return {**rig.shutdown(ShutdownTrial(who, facts["fs"], facts["block"], delay)), "delay_s": delay}

    def close(self) -> None:
        while self._rigs:
            torch, rig = self._rigs.popitem()
            rig.close()
            shutil.rmtree(self._folder(torch))

    def _folder(self, torch: bool) -> Path:
        return self._setting.scratch / ("rig-torch" if torch else "rig")

    def _started(self, *, torch: bool = False) -> Rig:
        """Start a rig. Subjects that need torch have their own, as a process that has imported torch is slow to fork."""
        if torch not in self._rigs:
            self._folder(torch).mkdir()
            self._rigs[torch] = Rig(self._folder(torch))
        return self._rigs[torch]

    @cached_property
    def _looked(self) -> _Machine:
        """What this machine supports. The rig used to probe is closed: trials may run in other processes."""
        try:
            return _look(self._study.arms, self._started)
        finally:
            self.close()

    def _shutdowns(self) -> Iterator[Trial]:
        """Round by round, every subject on every file system; a planted fault in every other round."""
        study = self._study
        for number in range(study.real_trials):
            block = number * study.real_blocks // study.real_trials
            for fs in self._looked.shutdown:
                for subject in self._subjects(planted=study.planted and number % 2 == 0):
                    facts = {
                        "arm": "shutdown",
                        "fs": fs,
                        "subject": subject.name,
                        "layout": subject.layout,
                        "variant": subject.variant,
                        "block": block,
                    }
                    yield Trial(f"shutdown/{fs}/{subject.key}/{block}/{number:04d}", facts)

    def _blocks(self) -> Iterator[Trial]:
        for fs in self._looked.blocks:
            subjects = [Subject(mode, "group") for mode in self._study.modes] + [Subject("atomic_dirsync", "single"), Subject("torch.save")]
            for subject in subjects + [Subject("atomic_dirsync", "group", plant) for plant in _BLOCK_PLANTS if self._study.planted]:
                facts = {"arm": "blocks", "fs": fs, **subject.facts}
                yield Trial(f"blocks/{fs}/{subject.key}", facts)

    def _subjects(self, *, planted: bool) -> list[Subject]:
        modes = self._study.modes
        subjects = [Subject(mode, layout) for layout in LAYOUTS for mode in modes]
        subjects += [Subject(mode, "group", SETTLED) for mode in modes if mode != "unsafe"]
        subjects += [Subject(subject) for subject in TORCH_SUBJECTS if not lacking(subject)]
        return subjects + [Subject("atomic_dirsync", "group", plant) for plant in PLANTS if planted]


@dataclass(frozen=True)
class _Machine:
    """The file systems that each arm can use here, and the arms that cannot run."""

    shutdown: tuple[str, ...]
    blocks: tuple[str, ...]
    skips: tuple[Skip, ...]


def _look(arms: Sequence[str], started: Callable[[], Rig]) -> _Machine:
    """Probe the machine: tools first, then by making, mounting and shutting down each kind of file system."""
    shutdown, blocks, skips = [], [], []
    wanted = [arm for arm in ("shutdown", "blocks") if arm in arms]
    lacking = _lacking()
    fuse = lacking or _lacking_fuse()
    skips += [Skip(arm, reason) for arm, reason in (("shutdown", lacking), ("blocks", fuse)) if arm in wanted and reason]
    for kind, (_, command) in DISKS.items():
        usable = [arm for arm in wanted if not (lacking if arm == "shutdown" else fuse)]
        if not usable:
            continue
        answer = started().probe(kind) if shutil.which(command[0]) else {"error": f"{command[0]} is not installed", "refusal": None}
        if answer["error"]:
            skips += [Skip(f"{arm}/{kind}", answer["error"]) for arm in usable]
            continue
        if "blocks" in usable:
            blocks.append(kind)
        if "shutdown" in usable and answer["refusal"] is not None:
            number = int(answer["refusal"])
            skips.append(Skip(f"shutdown/{kind}", f"refuses FS_IOC_SHUTDOWN: {errno.errorcode.get(number, number)} (errno {number})"))
        elif "shutdown" in usable:
            shutdown.append(kind)
    return _Machine(tuple(shutdown), tuple(blocks), tuple(skips))


def _lacking() -> str:
    """Why no file system can be mounted here; empty if they can."""
    if not sys.platform.startswith("linux"):
        return f"needs Linux, this is {sys.platform}"
    if os.geteuid() != 0:
        return f"needs root to mount, this is uid {os.geteuid()}"
    return "" if Path("/dev/loop-control").exists() else "no loop devices: /dev/loop-control does not exist"


def _lacking_fuse() -> str:
    if not Path("/dev/fuse").exists():
        return "no FUSE: /dev/fuse does not exist"
    if importlib.util.find_spec("mfusepy") is None:
        return "mfusepy is not installed (pip install 'ecrl[rigs]')"
    return "" if ctypes.util.find_library("fuse3") or ctypes.util.find_library("fuse") else "libfuse is not installed (apt-get install libfuse3-3)"
