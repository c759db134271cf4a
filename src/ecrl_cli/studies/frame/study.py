"""What a study is: arms of trials that are planned in advance, and what their records show.

A study is deterministic in (config, seed): the plan is fixed before the first trial and does not depend on any outcome, a trial's
randomness comes from `rng(key)` alone, and any trial can be run again by its key.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from ecrl_cli.config.study import StudyConfig
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.studies.frame.result import Figure, Findings, Table
from ecrl_cli.studies.frame.trial_timeout import Overdue, deadline

T = TypeVar("T")


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
    """What trials are run with. `scratch`: an empty folder of its own on the file system under test (one per worker)."""

    config: StudyConfig
    scratch: Path
    _shared: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def keys(self) -> Any:
        """What the user may set: the study's own dataclass."""
        return self.config.study

    @property
    def seed(self) -> int:
        return self.config.seed

    def rng(self, key: str) -> random.Random:
        """The randomness of one trial: a function of the study's seed and `key`."""
        digest = hashlib.sha256(f"{self.config.seed}/{key}".encode()).digest()
        return random.Random(int.from_bytes(digest[:8], "big"))

    def shared(self, make: Callable[[StudyContext], T]) -> T:
        """What `make` gives of this context: made once in each process, for all trials; closed with the study if it has a `close`."""
        if make not in self._shared:
            self._shared[make] = make(self)
        made: T = self._shared[make]
        return made

    def close(self) -> None:
        """Close what is shared, the newest first; whoever asks for it again gets a new one."""
        while self._shared:
            _, made = self._shared.popitem()
            if hasattr(made, "close"):
                made.close()


def _no_reason(context: StudyContext) -> str:
    return ""


@dataclass(frozen=True)
class Arm:
    """One kind of trial: `trials` plans them, `run` tries one and gives what came of it, as JSON values.

    `run` leaves nothing behind in the scratch folder. An exception out of it ends the study: a defect, never an outcome.
    `asked`: whether the study's keys ask for this arm. `missing`: what this machine lacks for it: then it is skipped with that reason.
    `limit_s`: a trial that takes longer is ended, and `overdue` is what is on record of it.
    """

    name: str
    trials: Callable[[StudyContext], Iterable[Trial]]
    run: Callable[[StudyContext, Trial], dict[str, Any]]
    asked: Callable[[Any], bool] = lambda keys: True
    missing: Callable[[StudyContext], str] = _no_reason
    limit_s: float = 0.0
    overdue: dict[str, Any] = field(default_factory=dict)

    def tried(self, context: StudyContext, trial: Trial) -> dict[str, Any]:
        """What came of `trial`, within the arm's limit."""
        if not self.limit_s:
            return self.run(context, trial)
        try:
            with deadline(self.limit_s):
                return self.run(context, trial) | {"overdue": False}
        except Overdue:
            context.close()  # what is shared may be what hung, and is dead
            return self.overdue | {"overdue": True}


def planted(keys: Any) -> bool:
    """For `Arm.asked`: whether the study is to look for planted bugs."""
    return bool(keys.planted)


@dataclass(frozen=True)
class Results:
    """The records of a study, in the plan's order; all of them if it is complete."""

    context: StudyContext
    records: Sequence[Record]
    fact: str = "arm"

    @property
    def keys(self) -> Any:
        return self.context.keys

    def of(self, *arms: str) -> list[Record]:
        """The records of these arms, arm by arm; without a name, all."""
        return [record for arm in arms for record in self.records if record.facts[self.fact] == arm] if arms else list(self.records)


def shows(find: Callable[[list[Record]], Findings], *arms: str) -> Callable[[Results], Findings]:
    """For `Study.findings`: what `find` makes of the records of `arms`; nothing where there are none."""
    return lambda results: find(found) if (found := results.of(*arms)) else Findings()


@dataclass(frozen=True)
class Study:
    """Everything about a study; registered by its name under `ecrl.studies`, or in `registry`.

    `keys`: the frozen dataclass of what the user may set under `study.`; the default of its `name` is the study's. `description`: one sentence.
    `arms`: in the order in which their trials are run. `fact`: which of a trial's facts names its arm, where there are several.
    `tables`, `figures`, `gates`, `notes`: each gives its part of result.json. `findings`: each gives several of them at once, where they share
    work. A table without rows and a figure without series are left out. `skips`: what else cannot be tried on this machine.
    `alone`: it measures time, so trials must not run side by side.
    """

    keys: type[Any]
    description: str
    arms: Sequence[Arm]
    tables: Sequence[Callable[[Results], Table]] = ()
    figures: Callable[[Results], Iterable[Figure]] = lambda results: ()
    gates: Sequence[Callable[[Results], Iterable[Gate]]] = ()
    notes: Callable[[Results], Iterable[str]] = lambda results: ()
    findings: Sequence[Callable[[Results], Findings]] = ()
    skips: Callable[[StudyContext], Iterable[Skip]] = lambda context: ()
    fact: str = "arm"
    alone: bool = False

    @property
    def name(self) -> str:
        return str(next(key.default for key in fields(self.keys) if key.name == "name"))

    def open(self, context: StudyContext) -> OpenStudy:
        return OpenStudy(self, context)

    def concluded(self, results: Results) -> Findings:
        """What the records show."""
        parts = [find(results) for find in self.findings]
        tables = [*(table for part in parts for table in part.tables), *(make(results) for make in self.tables)]
        figures = [*(figure for part in parts for figure in part.figures), *self.figures(results)]
        return Findings(
            tables=tuple(table for table in tables if table.rows),
            figures=tuple(figure for figure in figures if figure.series),
            gates=(*(gate for part in parts for gate in part.gates), *(gate for judged in self.gates for gate in judged(results))),
            notes=(*(note for part in parts for note in part.notes), *self.notes(results)),
        )


class PreparedStudy(Protocol):
    """A study at work, as the runner sees it."""

    def plan(self) -> Sequence[Trial]: ...
    def skips(self) -> Sequence[Skip]: ...
    def run(self, trial: Trial) -> dict[str, Any]: ...
    def findings(self, records: Sequence[Record]) -> Findings: ...
    def close(self) -> None: ...


class OpenStudy:
    """A study at work: one in the main process, which plans and concludes, and one in each worker."""

    def __init__(self, study: Study, context: StudyContext) -> None:
        self._study, self._context = study, context
        self._arms = [arm for arm in study.arms if arm.asked(context.keys)]

    def plan(self) -> list[Trial]:
        """Every trial, in the order of execution."""
        return [trial for arm in self._arms if not self._missing[arm.name] for trial in arm.trials(self._context)]

    def skips(self) -> list[Skip]:
        """What the plan leaves out on this machine."""
        return [*(Skip(arm, reason) for arm, reason in self._missing.items() if reason), *self._study.skips(self._context)]

    def run(self, trial: Trial) -> dict[str, Any]:
        return self._arm(trial).tried(self._context, trial)

    def findings(self, records: Sequence[Record]) -> Findings:
        return self._study.concluded(Results(self._context, records, self._study.fact))

    def close(self) -> None:
        """Give back processes, mounts and memory, also after an interruption."""
        self._context.close()

    @cached_property
    def _missing(self) -> dict[str, str]:
        return {arm.name: arm.missing(self._context) for arm in self._arms}

    def _arm(self, trial: Trial) -> Arm:
        arms = self._study.arms
        return arms[0] if len(arms) == 1 else next(arm for arm in arms if arm.name == trial.facts[self._study.fact])
