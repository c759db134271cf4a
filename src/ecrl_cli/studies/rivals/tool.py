"""A tool of the race: how it is asked about a job, and its answer in words that all share."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Protocol

from ecrl_cli.studies.rivals.bench import RaceBench
from ecrl_cli.studies.rivals.subjects import USER, RacedJob

CAUGHT, PASSED, UNKNOWN, NOT_APPLICABLE, FAILED = (
    "caught",
    "passed",
    "unknown",
    "not applicable",
    "tool failed",
)


@dataclass(frozen=True)
class ToolAnswer:
    """A tool's answer on a job. `outcome`: caught: it says that recovery is wrong; passed: that it
    is right; unknown: that it cannot say; not applicable: what its user would have to write, in
    `text`; tool failed. `text`: its own words. `deaths`: moments of failure that were tried.
    `starts`: of the job. `lines`: that its user writes beside the command line.
    """

    outcome: str
    text: str
    deaths: int = 0
    starts: int = 0
    lines: int = 0
    seconds: float = 0.0


def failed(text: str, seconds: float, lines: int = 0) -> ToolAnswer:
    """The tool came to no answer; `text`: what it printed, of which the end is kept."""
    return ToolAnswer(FAILED, text.strip()[-300:], lines=lines, seconds=seconds)


# A folder of this machine in which a trial ran.
_SCRATCH = re.compile(r"/\S*?/\.scratch/\w+/\w+/")


def written(*names: str) -> int:
    """Lines of code in files that a user writes: without comments, docstrings, blank lines."""
    text = "".join((USER / name).read_text(encoding="utf-8") for name in names)
    text = re.sub(r'""".*?"""', "", text, flags=re.DOTALL)
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in text.split("\n"))


class Tool(Protocol):
    """`name`: also of its environment's folder, in lower case; `distribution`: on PyPI."""

    name: str
    distribution: str
    way: str  # how it was used, and where its documentation says so

    def judge(self, subject: RacedJob, bench: RaceBench) -> ToolAnswer: ...


def named_right(subject: RacedJob, answer: ToolAnswer) -> bool:
    """Whether the answer holds a word that names the cause."""
    return any(word.lower() in answer.text.lower() for word in subject.named)


def found(subject: RacedJob, answer: ToolAnswer) -> dict[str, Any]:
    """The record of a trial."""
    caught = answer.outcome == CAUGHT
    return {
        "outcome": answer.outcome,
        "right": answer.outcome == (PASSED if subject.healthy else CAUGHT),
        "false_alarm": subject.healthy and caught,
        "missed": not subject.healthy and answer.outcome == PASSED,
        "named": not subject.healthy and caught and named_right(subject, answer),
        "text": _SCRATCH.sub("", answer.text)[:600],
        "deaths": answer.deaths,
        "starts": answer.starts,
        "lines": answer.lines,
        "tool_seconds": answer.seconds,
    }
