"""What the benches that train by the real command share: start a run, and read off its records when
ranks died and when the work went on.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from bench.program import installed

from ecrl_cli.history.load import RunRecords, load
from ecrl_cli.records.events import InjectedFault, RankLine, Span
from ecrl_cli.records.journal import read_journal
from ecrl_cli.records.layout import RunLayout


def train(run_dir: Path, *overrides: str) -> RunRecords:
    """`ecrl train` to its end; RuntimeError with what it said where it does not come to it."""
    command = [sys.executable, "-m", "ecrl_cli.cli.main", "train", *overrides, f"run_dir={run_dir}"]
    done = subprocess.run(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env=installed(),
    )
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}"
        )
    return load(RunLayout(run_dir))


@dataclass(frozen=True)
class Death:
    """One kill and what came of it, in seconds of one clock. `interrupted_s`: what its victim had
    done of the step; `back_s`: from the kill to the end of the first step that anybody committed
    after it.
    """

    fired: InjectedFault
    interrupted_s: float
    back_s: float


def deaths(records: RunRecords) -> list[Death]:
    """In the order in which they struck."""
    fired = sorted(records.fired, key=lambda entry: entry.at)
    return [
        Death(
            entry, entry.at - step_began(records, entry), first_line(records, entry).at - entry.at
        )
        for entry in fired
    ]


def step_began(records: RunRecords, fired: InjectedFault) -> float:
    """When the victim began what it was struck in: its last span that is on record ended there. The
    kill itself where there is none.
    """
    spans = read_journal(records.layout.attempt(fired.attempt).spans(fired.rank), Span).events
    return max((span.end for span in spans if span.end <= fired.at), default=fired.at)


def first_line(records: RunRecords, fired: InjectedFault) -> RankLine:
    """The first step that a survivor or a later attempt committed after the kill."""
    lines = [
        line for a in records.attempt_logs for rank in a.ranks.values() for line in rank.events
    ]
    return min((line for line in lines if line.at > fired.at), key=lambda line: line.at)


def machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load": os.getloadavg(),
    }
