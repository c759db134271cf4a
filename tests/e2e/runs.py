"""Helpers of the end-to-end tests: what a finished run directory says."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from ecrl_cli.records.digests import record_files
from ecrl_cli.records.events import RankLine
from ecrl_cli.records.journal import read_journal
from ecrl_cli.records.layout import RunLayout

# Small enough for seconds, odd enough to be honest: kills off the boundary, of a rank that is not
# rank 0.
_TINY = {
    "dataset": "digits",
    "model": "small_cnn",
    "model.width": "8",
    "global_batch": "48",
    "target_steps": "24",
    "checkpoint.every": "6",
    "failure": "kill",
    "reference": "none",  # where it is the point, the test says so
    "failure.steps": "[9,15]",
    "failure.rank": "1",
    "supervision.launcher": "zygote",
}


def tiny(*changes: str) -> list[str]:
    """The overrides of a small run, with `changes` (KEY=VALUE; an empty VALUE leaves the key
    out).
    """
    keys = _TINY | dict(change.split("=", 1) for change in changes)
    return [f"{key}={value}" for key, value in keys.items() if value]


def manifest(sweep: Path) -> dict[str, Path]:
    """The sweep's run directories by variant."""
    with (sweep / "manifest.csv").open() as file:
        return {row["variant"]: sweep / row["run"] for row in csv.DictReader(file)}


def metrics(run: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(RunLayout(run).metrics.read_text())
    return document


def steps_logged(run: Path, attempt: int = 0) -> int:
    """How many steps rank 0 has logged so far."""
    log = RunLayout(run).attempt(attempt).rank(0)
    return log.read_text().count("\n") if log.exists() else 0


def supervisor(run: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(RunLayout(run).supervisor.read_text())
    return document


def end_state(run: Path) -> dict[str, Any]:
    """What two runs that must end alike are compared by."""
    final: dict[str, Any] = metrics(run)["final"]
    return final


def last_losses(run: Path, rank: int) -> dict[int, float]:
    """The loss of every step as the last attempt that did it logged it."""
    layout = RunLayout(run)
    lines = [
        line
        for a in layout.attempts()
        for line in read_journal(layout.attempt(a).rank(rank), RankLine).events
    ]
    return {line.global_step: line.loss for line in lines}


def records_naming(run: Path, folder: Path) -> list[str]:
    """The record files of `run`, relative to it, in which `folder` is written: none may be, so that
    a run that is moved stays what it was.
    """
    wanted = str(folder).encode()
    found = [
        path
        for path in record_files(RunLayout(run))
        if path.suffix in (".json", ".jsonl") and wanted in path.read_bytes()
    ]
    return [path.relative_to(run).as_posix() for path in found]
