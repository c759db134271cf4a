"""A study: arms of trials that are planned in advance, and the evaluation of their records.

A study is deterministic in (config, seed): the plan is fixed before the first trial and depends on
no outcome, a trial's randomness comes only from `rng(key)`, and any trial can be rerun by its key.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from ecrl_cli.config.codec import encode
from ecrl_cli.config.study import StudyConfig
from ecrl_cli.linux.prerequisites import lacking
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.studies.frame.limits import Overdue, deadline
from ecrl_cli.studies.frame.result import Figure, Findings, ResultTable

T = TypeVar("T")


@dataclass(frozen=True)
class Trial:
    """`key`: unique in the plan and stable (`unsafe/group/after_commit/007`). `facts`: the trial's
    parameters, as JSON scalars.
    """

    key: str
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Record:
    """A line of trials.jsonl: the trial and its result (JSON values; most studies have an
    `outcome`).

    SHARED: a torn line, left by a full disk or a killed study, is skipped even if others follow;
    its trial is rerun.
    """

    SHARED: ClassVar[bool] = True

    key: str
    facts: dict[str, Any]
    found: dict[str, Any]
    seconds: float


@dataclass(frozen=True)
class Skip:
    """An arm that this machine cannot run, and why: printed and recorded, never counted as
    passed.
    """

    arm: str
    reason: str


@dataclass(frozen=True)
class StudyContext:
    """The environment of trials. `scratch`: an empty folder of its own on the file system under
    test (one per worker).
    """

    config: StudyConfig
    scratch: Path
    _shared: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def keys(self) -> Any:
        """The user's settings, as the study's own dataclass."""
        return self.config.study

    @property
    def seed(self) -> int:
        return self.config.seed

    def rng(self, key: str) -> random.Random:
        """A trial's random generator, a function of the study's seed and `key`."""
        digest = hashlib.sha256(f"{self.config.seed}/{key}".encode()).digest()
        return random.Random(int.from_bytes(digest[:8], "big"))

    def shared(self, make: Callable[[StudyContext], T]) -> T:
        """The object that `make` returns for this context: made once per process for all trials;
        closed with the study if it has a `close`.
        """
        if make not in self._shared:
            self._shared[make] = make(self)
        made: T = self._shared[make]
        return made

    def close(self) -> None:
        """Close the shared objects, newest first; a later `shared` makes new ones."""
        while self._shared:
            _, made = self._shared.popitem()
            if hasattr(made, "close"):
                made.close()


@dataclass(frozen=True)
class Arm:
    """One kind of trial: `trials` plans them, `run` runs one and returns its result as JSON values.

    `run` leaves nothing in the scratch folder. An exception from it ends the study: a defect, never
    an outcome. `enabled`: whether the study's keys ask for this arm. `missing`: what this machine
    lacks for it; then it is skipped with that reason. `limit_s`: a longer trial is ended, and
    `overdue` is recorded as its result.
    """

    name: str
    trials: Callable[[StudyContext], Iterable[Trial]]
    run: Callable[[StudyContext, Trial], dict[str, Any]]
    enabled: Callable[[Any], bool] = lambda keys: True
    missing: Callable[[StudyContext], str] = lambda context: ""
    limit_s: float = 0.0
    overdue: dict[str, Any] = field(default_factory=dict)

    def run_within_limit(self, context: StudyContext, trial: Trial) -> dict[str, Any]:
        """Run `trial` within the arm's time limit; returns its result."""
        if not self.limit_s:
            return self.run(context, trial)
        try:
            with deadline(self.limit_s):
                return self.run(context, trial) | {"overdue": False}
        except Overdue:
            context.close()  # shared objects may be what hung, and are dead
            return self.overdue | {"overdue": True}


def planted(keys: Any) -> bool:
    """For `Arm.enabled`: whether the study is to look for planted bugs."""
    return bool(keys.planted)


def planted_arm(
    bugs: Iterable[str], run: Callable[[StudyContext, Trial], dict[str, Any]], fact: str = "bug"
) -> Arm:
    """The arm `planted`: one trial for each of `bugs`, which its fact `fact` names; on if the study
    is to look for planted bugs.
    """
    named = tuple(bugs)
    return Arm(
        "planted",
        lambda context: [
            Trial(f"planted/{bug.replace(' ', '_')}", {"arm": "planted", fact: bug})
            for bug in named
        ],
        run,
        planted,
    )


def asked(arm: str) -> Callable[[Any], bool]:
    """For `Arm.enabled`: whether the key `arms` names `arm`."""
    return lambda keys: arm in keys.arms


def needs(*names: str) -> Callable[[StudyContext], str]:
    """For `Arm.missing`: the first of the prerequisites `names` that this machine lacks."""
    return lambda context: lacking(*names)


@dataclass(frozen=True)
class TrialResults:
    """A study's records in the order of the plan, without gaps if it is complete."""

    context: StudyContext
    records: Sequence[Record]
    fact: str = "arm"

    @property
    def keys(self) -> Any:
        return self.context.keys

    def of(self, *arms: str) -> list[Record]:
        """The records of these arms, arm by arm; all if no arm is named."""
        return (
            [record for arm in arms for record in self.records if record.facts[self.fact] == arm]
            if arms
            else list(self.records)
        )


def shows(
    find: Callable[[list[Record]], Findings], *arms: str
) -> Callable[[TrialResults], Findings]:
    """For `Study.findings`: `find` applied to the records of `arms`; nothing without records."""
    return lambda results: find(found) if (found := results.of(*arms)) else Findings()


@dataclass(frozen=True)
class Study:
    """The definition of a study; registered by name under `ecrl.studies`, or in `registry`.

    `keys`: the frozen dataclass of the user's settings under `study.`; the default of its `name` is
    the study's. `description`: one sentence.
    `arms`: in execution order. `fact`: which of a trial's facts names its arm, if there are
    several. `tables`, `figures`, `gates`, `notes`: each gives its part of result.json. `findings`:
    each gives several parts at once, where they share work. Tables without rows and figures without
    series are left out. `skips`: what else cannot run on this machine. `alone`: it measures time,
    so trials must not run in parallel.
    """

    keys: type[Any]
    description: str
    arms: Sequence[Arm]
    tables: Sequence[Callable[[TrialResults], ResultTable]] = ()
    figures: Callable[[TrialResults], Iterable[Figure]] = lambda results: ()
    gates: Sequence[Callable[[TrialResults], Iterable[Gate]]] = ()
    notes: Callable[[TrialResults], Iterable[str]] = lambda results: ()
    findings: Sequence[Callable[[TrialResults], Findings]] = ()
    skips: Callable[[StudyContext], Iterable[Skip]] = lambda context: ()
    fact: str = "arm"
    alone: bool = False

    @property
    def name(self) -> str:
        return str(next(key.default for key in fields(self.keys) if key.name == "name"))

    def open(self, context: StudyContext) -> OpenStudy:
        return OpenStudy(self, context)

    def conclude(self, results: TrialResults) -> Findings:
        """The findings from the records."""
        parts = [find(results) for find in self.findings]
        tables = [
            *(table for part in parts for table in part.tables),
            *(make(results) for make in self.tables),
        ]
        figures = [*(figure for part in parts for figure in part.figures), *self.figures(results)]
        return Findings(
            tables=tuple(table for table in tables if table.rows),
            figures=tuple(figure for figure in figures if figure.series),
            gates=(
                *(gate for part in parts for gate in part.gates),
                *(gate for judged in self.gates for gate in judged(results)),
            ),
            notes=(*(note for part in parts for note in part.notes), *self.notes(results)),
        )


class PreparedStudy(Protocol):
    """An open study, as the runner uses it."""

    def plan(self) -> Sequence[Trial]: ...
    def skips(self) -> Sequence[Skip]: ...
    def run(self, trial: Trial) -> dict[str, Any]: ...
    def findings(self, records: Sequence[Record]) -> Findings: ...
    def close(self) -> None: ...


class OpenStudy:
    """An open study: one in the main process, which plans and evaluates, and one in each worker."""

    def __init__(self, study: Study, context: StudyContext) -> None:
        self._study, self._context = study, context
        self._arms = [arm for arm in study.arms if arm.enabled(context.keys)]

    def plan(self) -> list[Trial]:
        """Every trial in execution order."""
        return [
            trial
            for arm in self._arms
            if not self._missing[arm.name]
            for trial in arm.trials(self._context)
        ]

    def skips(self) -> list[Skip]:
        """Arms that the plan leaves out on this machine."""
        return [
            *(Skip(arm, reason) for arm, reason in self._missing.items() if reason),
            *self._study.skips(self._context),
        ]

    def run(self, trial: Trial) -> dict[str, Any]:
        return self._arm(trial).run_within_limit(self._context, trial)

    def findings(self, records: Sequence[Record]) -> Findings:
        return self._study.conclude(TrialResults(self._context, records, self._study.fact))

    def close(self) -> None:
        """Release processes, mounts and memory, also after an interruption."""
        self._context.close()

    @cached_property
    def _missing(self) -> dict[str, str]:
        return {arm.name: arm.missing(self._context) for arm in self._arms}

    def _arm(self, trial: Trial) -> Arm:
        arms = self._study.arms
        return (
            arms[0]
            if len(arms) == 1
            else next(arm for arm in arms if arm.name == trial.facts[self._study.fact])
        )


def command(config: StudyConfig, key: str) -> str:
    """The command line that reruns the trial `key` of this study."""
    defaults = encode(type(config.study)())
    keys = {name: value for name, value in encode(config.study).items() if value != defaults[name]}
    words = [f"study.{name}={_value(value)}" for name, value in keys.items()]
    return " ".join(
        ["ecrl study", f"study={config.name}", f"seed={config.seed}", *words, f"'trial={key}'"]
    )


def _value(value: object) -> str:
    return (
        f"'[{','.join(map(str, value))}]'"
        if isinstance(value, list)
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
    )
