"""The jobs of the race, from subjects.yaml."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

CHECKOUT = Path(__file__).resolve().parents[4]
USER = CHECKOUT / "examples" / "rivals"  # what a user of a tool writes


@dataclass(frozen=True)
class Half:
    """Where a job is stopped on purpose: after `updates` optimizer steps, when the file `saved` has
    just been written; `last` is the file that the finished job leaves.
    """

    updates: int
    saved: str
    last: str


@dataclass(frozen=True)
class RacedJob:
    """A job as it is started first and again after a failure; `{dir}` stands for its folder.

    `named`: words of which an answer must hold one to have named the cause rightly. `results`:
    files that a user would compare, `FILE:KEY` one entry of them. `checkpoints`: a glob of numbered
    checkpoints. `track`: the variable that holds the model. `modules`: what it imports.
    """

    job: str
    healthy: bool
    script: Path
    words: str
    again: str
    named: tuple[str, ...]
    results: tuple[str, ...]
    checkpoints: str
    half: Half | None
    track: str
    modules: tuple[str, ...]

    @property
    def switch(self) -> str:
        """The switches that are on, in words; empty where none is."""
        words = self.again or self.words.replace("{dir}", "").replace("--out", "")
        return " ".join(words.split()).replace("'", "")

    @property
    def key(self) -> str:
        kind = "healthy" if self.healthy else "broken"
        return f"{self.job}/{' '.join(filter(None, (kind, self.switch)))}"

    def first(self) -> list[str]:
        """The script and its words in a first start."""
        return [str(self.script), *shlex.split(self.words)]

    def restarted(self) -> list[str]:
        """The script and its words in a restart."""
        return [*self.first(), *shlex.split(self.again)]


@cache
def subjects() -> tuple[RacedJob, ...]:
    """All rows, in the order of the file."""
    text = Path(__file__).with_name("subjects.yaml").read_text(encoding="utf-8")
    return tuple(_subject(job, row) for job in yaml.safe_load(text) for row in job["rows"])


def _subject(job: dict[str, Any], row: dict[str, Any]) -> RacedJob:
    half = job.get("half")
    return RacedJob(
        job=job["job"],
        healthy=row["kind"] == "healthy",
        script=CHECKOUT / job["script"],
        words=row.get("words", job["words"]),
        again=row.get("again", ""),
        named=tuple(row.get("named", ())),
        results=tuple(job.get("results", ())),
        checkpoints=job.get("checkpoints", ""),
        half=Half(**half) if half else None,
        track=job.get("track", ""),
        modules=tuple(job.get("modules", ())),
    )


def missing_checkout() -> str:
    """Why the jobs are not here; empty if they are."""
    if not (CHECKOUT / "tests" / "strangers" / "jobs").is_dir():
        return "the jobs are not installed: run it in a checkout"
    return ""
