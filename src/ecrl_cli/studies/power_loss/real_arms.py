"""The two arms on real file systems: `shutdown` (shut down while saving) and `blocks` (crash points
of the disk's write log).
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ecrl_cli.config.schema import LAYOUTS
from ecrl_cli.config.studies import PowerLoss
from ecrl_cli.linux import prerequisites
from ecrl_cli.studies.frame.checkpointers import lacking
from ecrl_cli.studies.frame.store_fixture import Payload
from ecrl_cli.studies.frame.study import Skip, StudyContext, Trial
from ecrl_cli.studies.power_loss.disk_mounts import DISKS
from ecrl_cli.studies.power_loss.real_blocks import BlocksTrial
from ecrl_cli.studies.power_loss.real_process import TORCH_SUBJECTS, Who
from ecrl_cli.studies.power_loss.real_rig import Rig, ShutdownTrial
from ecrl_cli.studies.power_loss.subject_store import PLANTS, SETTLED

_BLOCK_PLANTS = ("no_root_sync", "no_file_sync")
_MOUNTING = ("root", "private mounts", "loop devices")
# by arm; and mkfs of a file system
NEEDS = {"shutdown": _MOUNTING, "blocks": (*_MOUNTING, "/dev/fuse", "mfusepy", "libfuse")}


@dataclass(frozen=True)
class RigSubject:
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

    def missing(self, arm: str) -> str:
        """Why `arm` can run on no file system here; empty if it can on one."""
        return self._looked.missing(arm)

    def skips(self) -> Sequence[Skip]:
        """File systems that the arms that can run leave out, and subjects whose package is not
        installed.
        """
        absent = [
            Skip(f"shutdown: {subject}", reason)
            for subject in TORCH_SUBJECTS
            if (reason := lacking(subject)) and self._looked.usable("shutdown")
        ]
        return [*self._looked.skips(), *absent]

    def run(self, trial: Trial) -> dict[str, Any]:
        facts, rng, study = trial.facts, self._setting.rng(trial.key), self._study
        payload = Payload(rng.randrange(2**32), study.real_model_bytes, study.real_optimizer_bytes)
        who = Who(facts["subject"], facts["layout"], facts["variant"], payload)
        rig = self._started(torch=who.subject in TORCH_SUBJECTS)
        if facts["arm"] == "blocks":
            return rig.blocks(
                BlocksTrial(who, facts["fs"], study.real_states, rng.randrange(2**32))
            )
        delay = rng.uniform(0.0, study.real_window_s)
        return {
            **rig.shutdown(ShutdownTrial(who, facts["fs"], facts["block"], delay)),
            "delay_s": delay,
        }

    def close(self) -> None:
        while self._rigs:
            torch, rig = self._rigs.popitem()
            rig.close()
            shutil.rmtree(self._folder(torch))

    def _folder(self, torch: bool) -> Path:
        return self._setting.scratch / ("rig-torch" if torch else "rig")

    def _started(self, *, torch: bool = False) -> Rig:
        """Start a rig. Subjects that need torch have their own, as a process that has imported
        torch is slow to fork.
        """
        if torch not in self._rigs:
            self._folder(torch).mkdir()
            self._rigs[torch] = Rig(self._folder(torch))
        return self._rigs[torch]

    @cached_property
    def _looked(self) -> _Machine:
        """The capabilities of this machine. The rig used to probe is closed: trials may run in
        other processes.
        """
        try:
            return _look(self._study.arms, self._started)
        finally:
            self.close()

    def _shutdowns(self) -> Iterator[Trial]:
        """Round by round, every subject on every file system; a planted fault in every other
        round.
        """
        study = self._study
        for number in range(study.real_trials):
            block = number * study.real_blocks // study.real_trials
            for fs in self._looked.usable("shutdown"):
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
        for fs in self._looked.usable("blocks"):
            subjects = [RigSubject(mode, "group") for mode in self._study.modes] + [
                RigSubject("atomic_dirsync", "single"),
                RigSubject("torch.save"),
            ]
            for subject in subjects + [
                RigSubject("atomic_dirsync", "group", plant)
                for plant in _BLOCK_PLANTS
                if self._study.planted
            ]:
                facts = {"arm": "blocks", "fs": fs, **subject.facts}
                yield Trial(f"blocks/{fs}/{subject.key}", facts)

    def _subjects(self, *, planted: bool) -> list[RigSubject]:
        modes = self._study.modes
        subjects = [RigSubject(mode, layout) for layout in LAYOUTS for mode in modes]
        subjects += [RigSubject(mode, "group", SETTLED) for mode in modes if mode != "unsafe"]
        subjects += [RigSubject(subject) for subject in TORCH_SUBJECTS if not lacking(subject)]
        return subjects + [
            RigSubject("atomic_dirsync", "group", plant) for plant in PLANTS if planted
        ]


@dataclass(frozen=True)
class _Machine:
    """`lacks`: by arm, why it cannot run at all, or nothing. `refused`: by arm and file system, why
    it cannot run on that one, or nothing.
    """

    lacks: dict[str, str]
    refused: dict[str, dict[str, str]]

    def usable(self, arm: str) -> tuple[str, ...]:
        """The file systems on which `arm` can run."""
        return tuple(kind for kind, reason in self.refused.get(arm, {}).items() if not reason)

    def missing(self, arm: str) -> str:
        return self.lacks.get(arm, "") or (
            "" if self.usable(arm) else "; ".join(self.refused.get(arm, {}).values())
        )

    def skips(self) -> list[Skip]:
        arms = [arm for arm in self.refused if self.usable(arm)]
        return [
            Skip(f"{arm}/{kind}", reason)
            for arm in arms
            for kind, reason in self.refused[arm].items()
            if reason
        ]


def _look(arms: Sequence[str], started: Callable[[], Rig]) -> _Machine:
    """Probe the machine: prerequisites first, then by making, mounting and shutting down each kind
    of file system.
    """
    lacks = {arm: prerequisites.lacking(*needed) for arm, needed in NEEDS.items() if arm in arms}
    refused: dict[str, dict[str, str]] = {arm: {} for arm, reason in lacks.items() if not reason}
    for kind, (_, command) in DISKS.items() if refused else ():
        reason = prerequisites.lacking(command[0])
        answer: dict[str, Any] = (
            {"error": reason, "refusal": None} if reason else started().probe(kind)
        )
        for arm, by_kind in refused.items():
            by_kind[kind] = answer["error"] or _refusal(arm, kind, answer["refusal"])
    return _Machine(lacks, refused)


def _refusal(arm: str, kind: str, refusal: int | None) -> str:
    """Why a file system that can be mounted is of no use to `arm`; empty if it is."""
    if arm != "shutdown" or refusal is None:
        return ""
    return (
        f"{kind} refuses FS_IOC_SHUTDOWN: {errno.errorcode.get(int(refusal), refusal)} (errno"
        f" {refusal})"
    )
