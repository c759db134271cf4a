"""Which libraries recover exactly: healthy jobs, written as each one's documentation recommends,
under `ecrl audit` with every failure that it draws, promise by promise.

Jobs start from a process that has imported the library once (tests/strangers/warm.py). A broken
promise is an observation of these releases and of the recipe; whose fault it is the diagnosis does
not say.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ecrl_cli.audit.components import WORST_FIRST
from ecrl_cli.config.studies import Libraries
from ecrl_cli.errors import EvidenceMissing
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.studies.frame.study import (
    Arm,
    Skip,
    Study,
    StudyContext,
    Trial,
    TrialResults,
)
from ecrl_cli.studies.frame.tables import TableSpec, fact, found
from ecrl_cli.studies.rivals.bench import RaceBench, version_in
from ecrl_cli.studies.rivals.ecrl import attempts, run_audit
from ecrl_cli.studies.rivals.subjects import CHECKOUT, missing_checkout

Findings = Sequence[dict[str, Any]]
NOT_TRIED = "-"


@dataclass(frozen=True)
class Library:
    """A row of jobs.yaml, which says what its keys are."""

    library: str
    script: str
    packages: tuple[str, ...]
    modules: tuple[str, ...]
    recipe: str
    words: str = ""
    keys: str = ""
    ranks: int = 0
    note: str = ""
    unseen: bool = False  # its optimizers are none of torch's: no audit comes to an answer

    def command(self) -> list[str]:
        script = CHECKOUT / "examples" / self.script
        return [str(script), "--out", "{dir}", *shlex.split(self.words)]


@cache
def libraries() -> tuple[Library, ...]:
    """All rows, in the order of the file."""
    text = Path(__file__).with_name("jobs.yaml").read_text(encoding="utf-8")
    return tuple(
        Library(**row | {"packages": tuple(row["packages"]), "modules": tuple(row["modules"])})
        for row in yaml.safe_load(text)
    )


def _missing(context: StudyContext, row: Library) -> str:
    """The first package of `row` that the interpreter lacks; empty if none."""
    python = _python(context)
    return next((name for name in row.packages if not version_in(python, name)), "")


def _python(context: StudyContext) -> str:
    """Where a job starts, in a folder of its own; a link stays one, as in a virtual environment."""
    return str(Path(context.keys.python).expanduser().absolute())


def _asked(context: StudyContext) -> list[Library]:
    return [
        row
        for row in libraries()
        if context.keys.only in row.library
        and (context.keys.examples or not row.script.startswith("jobs/"))
    ]


def _trials(context: StudyContext) -> list[Trial]:
    python = _python(context)
    return [
        Trial(
            row.library,
            {
                "arm": "libraries",
                "library": row.library,
                "versions": ", ".join(
                    f"{name} {version_in(python, name)}" for name in row.packages
                ),
                "recipe": row.recipe,
                "processes": row.ranks or 1,
                "note": row.note,
            },
        )
        for row in _asked(context)
        if not _missing(context, row)
    ]


def _skips(context: StudyContext) -> list[Skip]:
    missing = {row.library: _missing(context, row) for row in _asked(context)}
    return [
        Skip(name, f"{package} is not installed") for name, package in missing.items() if package
    ]


def _run(context: StudyContext, trial: Trial) -> dict[str, Any]:
    row = next(row for row in libraries() if row.library == trial.facts["library"])
    bench, folder = context.shared(RaceBench), context.shared(RaceBench).folder()
    try:
        start = bench.start_with(_python(context), row.modules, row.ranks)
    except EvidenceMissing as error:
        return _judged((), "no answer", error.fact) | {"starts": 0, "deaths": 0}
    ended = run_audit(row.command(), "", start, bench, folder, row.keys)
    path = folder / "audit" / "audit.json"
    if not path.exists():
        last = ended.text.strip().rpartition("\n")[2].replace(f"{folder}/", "")[-400:]
        return _judged((), "no answer", last) | {"starts": 0, "deaths": 0}
    document = json.loads(path.read_text(encoding="utf-8"))
    starts, deaths = attempts(folder / "audit")
    judged = _judged(document["findings"], document["status"], document["diagnosis"])
    return judged | {"starts": starts, "deaths": deaths, "seconds": ended.seconds}


def _judged(findings: Findings, status: str, diagnosis: str) -> dict[str, Any]:
    """The columns of the table: the worst of the findings that each is about."""

    def worst(about: Callable[[dict[str, Any]], bool]) -> str:
        there = {finding["status"] for finding in findings if about(finding)}
        return next((status for status in WORST_FIRST if status in there), NOT_TRIED)

    def named(*promises: str) -> Callable[[dict[str, Any]], bool]:
        return lambda finding: finding["promise"].startswith(promises)

    return {
        "status": status,
        "diagnosis": diagnosis.replace(str(CHECKOUT), ""),
        "exactly_once": worst(named("exactly once", "same input")),
        "trajectory": worst(named("same trajectory")),
        "restored": worst(named("restored")),
        "checkpoint": worst(named("right checkpoint")),
        "inside_save": worst(named("recoverable inside a save")),
        "second_restart": worst(lambda finding: finding["arm"] == "twice"),
        "sigterm": worst(lambda finding: finding["arm"] == "sigterm"),
        "files": worst(named("same files")),
    }


def _answered(results: TrialResults) -> Iterator[Gate]:
    records = results.of("libraries")
    unseen = {row.library for row in libraries() if row.unseen}
    silent = [r.key for r in records if r.found["status"] == "no answer" and r.key not in unseen]
    expected = [r for r in records if r.key not in unseen]
    told = f"{len(expected) - len(silent)} of {len(expected)} audits came to an answer"
    yield Gate(
        "answered",
        bool(expected) and not silent,
        f"{told}{': not ' if silent else ''}{', '.join(silent)}",
    )


STUDY = Study(
    keys=Libraries,
    description=(
        "Healthy jobs in released libraries, recovering as their documentation recommends, under"
        " the whole audit: promise by promise."
    ),
    arms=(Arm("libraries", _trials, _run, missing=lambda context: missing_checkout()),),
    tables=(
        TableSpec(
            "libraries",
            "Which libraries recover exactly, as observed",
            columns=(
                fact("library", "library"),
                fact("versions", "version"),
                fact("processes", "processes", "count"),
                fact("recipe", "recipe"),
                found("status", "verdict"),
                found("exactly_once", "exactly once"),
                found("trajectory", "same trajectory"),
                found("restored", "restored"),
                found("checkpoint", "right checkpoint"),
                found("inside_save", "inside a save"),
                found("second_restart", "second restart"),
                found("sigterm", "SIGTERM"),
                found("files", "files"),
                found("diagnosis", "diagnosis"),
                fact("note", "cause, thread"),
            ),
            note="Observations of these releases with these recipes on one machine.",
        ),
    ),
    gates=(_answered,),
    skips=_skips,
    alone=True,
)
