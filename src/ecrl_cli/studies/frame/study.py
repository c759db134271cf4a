"""What a study is: a list of trials planned in advance, one record per trial, and what the records show.

A study is deterministic in (config, seed): the plan is fixed before the first trial and does not depend on any outcome, a trial's
randomness comes from `rng(key)` alone, and any trial can be run again by its key.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from ecrl_cli.config.study import StudyConfig
from ecrl_cli.studies.frame.result import Findings


@dataclass(frozen=True)
class Trial:
    """`key`: unique in the plan and the same for ever (`unsafe/group/after_commit/007`). `facts`: what is tried, as JSON scalars."""

    key: str
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Record:
    """A line of trials.jsonl: the trial and what came of it (JSON values; most studies have an `outcome`).

    SHARED: a torn line, left by a full disk or a study that died, is passed over also where others follow: its trial is run again.
    """

    SHARED: ClassVar[bool] = True

    key: str
    facts: dict[str, Any]
    found: dict[str, Any]
    seconds: float


@dataclass(frozen=True)
class Skip:
    """An arm that this machine cannot run, and why: printed, recorded, never counted as passed."""

    arm: str
    reason: str


@dataclass(frozen=True)
class StudyContext:
    """What a study is built from. `scratch`: an empty folder of its own on the file system under test (one per worker)."""

    config: StudyConfig
    scratch: Path

    def rng(self, key: str) -> random.Random:
        """The randomness of one trial: a function of the study's seed and `key`."""
        digest = hashlib.sha256(f"{self.config.seed}/{key}".encode()).digest()
        return random.Random(int.from_bytes(digest[:8], "big"))


class Study(Protocol):
    """Built by `make(setting)` in the main process and in every worker."""

    def plan(self) -> Sequence[Trial]:
        """Every trial, in the order of execution; arms that are compared stand interleaved."""

    def skips(self) -> Sequence[Skip]:
        """The arms that the plan leaves out on this machine."""

    def run(self, trial: Trial) -> dict[str, Any]:
        """Try; gives what came of it. Leaves nothing behind in the scratch folder. An exception ends the study: a defect, never an outcome."""

    def findings(self, records: Sequence[Record]) -> Findings:
        """Tables, figures, gates and sentences; `records` in the plan's order, all of them if the study is complete."""

    def close(self) -> None:
        """Give back processes, mounts and memory, also after an interruption."""
