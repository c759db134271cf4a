"""The tools that judge whether training recovers, in one race: the same jobs, healthy and broken,
before each of them. What a tool is not made for is told as not applicable, with what its user would
have to write.

All jobs start from a process that has imported torch (tests/strangers/warm.py), whichever tool asks
for it, so that a race takes minutes; seconds are compared with those of the bare job started in the
same way.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from ecrl_cli.config.studies import Rivals
from ecrl_cli.metrics.gates import Gate
from ecrl_cli.studies.frame.study import (
    Arm,
    Record,
    Skip,
    Study,
    StudyContext,
    Trial,
    TrialResults,
)
from ecrl_cli.studies.frame.tables import Cells, Group, TableSpec, cell, count, fact, found
from ecrl_cli.studies.rivals.bench import RaceBench, python_of, version_in
from ecrl_cli.studies.rivals.ckpt_chaos import CkptChaos
from ecrl_cli.studies.rivals.ecrl import Ecrl
from ecrl_cli.studies.rivals.pytest_torch import PytestTorch
from ecrl_cli.studies.rivals.subjects import missing_checkout, subjects
from ecrl_cli.studies.rivals.tool import CAUGHT, FAILED, NOT_APPLICABLE, UNKNOWN, Tool
from ecrl_cli.studies.rivals.tool import found as found_by
from ecrl_cli.studies.rivals.traincheck import TrainCheck
from ecrl_cli.studies.rivals.trainparity import TrainParity

TOOLS: dict[str, Tool] = {
    tool.name: tool for tool in (Ecrl(), CkptChaos(), TrainParity(), PytestTorch(), TrainCheck())
}


def _version(context: StudyContext, tool: Tool) -> str:
    return version_in(python_of(context.keys.environments, tool.name), tool.distribution)


def _asked(context: StudyContext) -> list[Tool]:
    """The tools that are asked for and installed."""
    return [TOOLS[name] for name in context.keys.tools if _version(context, TOOLS[name])]


def _skips(context: StudyContext) -> list[Skip]:
    return [
        Skip(name, f"{name} is not installed (pip install {TOOLS[name].distribution})")
        for name in context.keys.tools
        if not _version(context, TOOLS[name])
    ]


def _trials(context: StudyContext) -> list[Trial]:
    asked = _asked(context)
    return [
        Trial(
            f"{tool.name}/{subject.key}",
            {
                "arm": "race",
                "tool": tool.name,
                "job": subject.job,
                "kind": "healthy" if subject.healthy else "broken",
                "switch": subject.switch,
                "subject": subject.key,
                "version": _version(context, tool),
            },
        )
        for subject in subjects()  # a race that is stopped has heard every tool on some jobs
        for tool in asked
        if subject.job in context.keys.jobs
    ]


def _run(context: StudyContext, trial: Trial) -> dict[str, Any]:
    subject = next(row for row in subjects() if row.key == trial.facts["subject"])
    bench = context.shared(RaceBench)
    answer = TOOLS[trial.facts["tool"]].judge(subject, bench)
    bare = 0.0 if answer.outcome == NOT_APPLICABLE else bench.bare(subject)
    return found_by(subject, answer) | {"bare_seconds": bare}


def _applied(group: Group) -> list[Record]:
    return [r for r in group if r.found["outcome"] not in (NOT_APPLICABLE, FAILED)]


def _share(group: Group, kind: str, key: str) -> str:
    """`3 of 4`: of the jobs of that kind that the tool judged."""
    judged = [record for record in _applied(group) if record.facts["kind"] == kind]
    return f"{sum(bool(record.found[key]) for record in judged)} of {len(judged)}"


def _median(group: Group, key: str) -> float | None:
    values = [record.found[key] for record in _applied(group)]
    return statistics.median(values) if values else None


def _range(group: Group, key: str) -> str:
    values = [record.found[key] for record in _applied(group)] or [0]
    return str(values[0]) if len(set(values)) == 1 else f"{min(values)} to {max(values)}"


def _word(record: Record) -> str:
    """The outcome of one tool on one job, in a cell."""
    told = record.found
    if told["outcome"] in (NOT_APPLICABLE, FAILED, UNKNOWN):
        return str(told["outcome"])
    if told["false_alarm"]:
        return "false alarm"
    if told["outcome"] == CAUGHT:
        return "caught and named" if told["named"] else "caught"
    return "right" if told["right"] else "missed"


def _of(name: str) -> Cells:
    """The column of one tool in the table of jobs."""

    def read(group: Group) -> str:
        return next((_word(r) for r in group if r.facts["tool"] == name), "")

    return cell(name.lower().replace("-", "_"), name, "text", read)


def _ours(results: TrialResults) -> Iterator[Gate]:
    """Ours is right about each job, and names each cause; of others nothing is demanded."""
    records = [record for record in results.of("race") if record.facts["tool"] == Ecrl.name]
    wrong = [
        record.facts["subject"]
        for record in records
        if not record.found["right"]
        or (record.facts["kind"] == "broken" and not record.found["named"])
    ]
    if records:
        told = f"{len(records) - len(wrong)} of {len(records)} jobs judged rightly by ECRL"
        yield Gate("ours", not wrong, told + (f"; not {', '.join(wrong[:3])}" if wrong else ""))


def _notes(results: TrialResults) -> list[str]:
    ways = [f"{tool.name}: {tool.way}." for tool in TOOLS.values()]
    return [*ways, "Seconds were measured beside other work: they say an order of magnitude."]


STUDY = Study(
    keys=Rivals,
    description=(
        "The same healthy and broken jobs before ECRL, ckpt-chaos, TrainParity, pytest-torch and"
        " TrainCheck: what each catches and names, and what it costs."
    ),
    arms=(Arm("race", _trials, _run, missing=lambda context: missing_checkout()),),
    tables=(
        TableSpec(
            "tools",
            "What each tool saw",
            by=(fact("tool", "tool"), fact("version", "version")),
            columns=(
                cell(
                    "caught", "broken jobs caught", "text", lambda g: _share(g, "broken", "right")
                ),
                cell("named", "cause named", "text", lambda g: _share(g, "broken", "named")),
                cell(
                    "alarms", "false alarms", "text", lambda g: _share(g, "healthy", "false_alarm")
                ),
                count("unknown", "unknown", lambda r: r.found["outcome"] == UNKNOWN),
                count("na", "not applicable", lambda r: r.found["outcome"] == NOT_APPLICABLE),
                count("failed", "tool failed", lambda r: r.found["outcome"] == FAILED),
                cell("deaths", "deaths tried per job", "text", lambda g: _range(g, "deaths")),
                cell("starts", "starts of the job", "text", lambda g: _range(g, "starts")),
                cell("lines", "lines to write", "text", lambda g: _range(g, "lines")),
                cell(
                    "seconds", "seconds (median)", "seconds", lambda g: _median(g, "tool_seconds")
                ),
                cell("bare", "bare job (median)", "seconds", lambda g: _median(g, "bare_seconds")),
            ),
            note="Counts are of jobs that the tool judged; the rest is not applicable or failed.",
        ),
        TableSpec(
            "jobs",
            "Job by job",
            by=(fact("job", "job"), fact("kind", "kind"), fact("switch", "switched on")),
            columns=tuple(_of(name) for name in TOOLS),
            note=(
                "`caught and named`: broken, and the answer holds the cause. `right`: healthy, and"
                " passed."
            ),
        ),
        TableSpec(
            "answers",
            "In their own words",
            columns=(
                fact("subject", "job"),
                fact("tool", "tool"),
                found("outcome", "outcome"),
                found("text", "answer"),
            ),
        ),
    ),
    gates=(_ours,),
    notes=_notes,
    skips=_skips,
    alone=True,
)
