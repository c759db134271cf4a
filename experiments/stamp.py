"""What a kept result says of its making: version, commit, machine, date, and what else the machine
did meanwhile. Results belong to the release that made them: code that changes later says nothing
against them.
"""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import psutil
from experiments.registry import ROOT

from ecrl_cli.linux.clock import monotonic
from ecrl_cli.records.digests import source_sha256

# of the machine's processor time taken by other work: from there on a page says that its seconds
# compare nothing
BUSY = 0.05


@dataclass(frozen=True)
class Session:
    """One call that ran commands. `others`: the share of the machine's processor time that went to
    other work; `load`: at its begin and its end.
    """

    began: str
    seconds: float
    others: float
    load: tuple[float, float]


@contextmanager
def session(kept: list[Session]) -> Iterator[None]:
    """Appends what the machine did in the block to `kept`, also where the block ends in an
    exception.
    """
    began, clock, load = datetime.now(UTC), monotonic(), os.getloadavg()[0]
    busy, own = _busy_seconds(), _own_seconds()
    try:
        yield
    finally:
        seconds = monotonic() - clock
        room = max(seconds * (os.cpu_count() or 1), 1e-9)
        others = max(0.0, (_busy_seconds() - busy) - (_own_seconds() - own)) / room
        kept.append(
            Session(
                began.isoformat(timespec="seconds"),
                round(seconds, 1),
                round(min(others, 1.0), 3),
                (round(load, 2), round(os.getloadavg()[0], 2)),
            )
        )


def _busy_seconds() -> float:
    """Seconds that all processors were at work, or taken by other machines of the host."""
    times = psutil.cpu_times()
    return (
        sum(times)
        - times.idle
        - times.iowait
        - getattr(times, "guest", 0.0)
        - getattr(times, "guest_nice", 0.0)
    )


def _own_seconds() -> float:
    return sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def stamp(environment: Mapping[str, Any], sessions: list[Session]) -> dict[str, Any]:
    """The content of stamp.json. `environment`: that of the runs."""
    cpu = environment["cpu"]
    return {
        "schema_version": 1,
        "ecrl": environment["ecrl"],
        "commit": _commit(environment),
        "source_sha256": environment["source_sha256"],
        "machine": {
            "processor": cpu["model"],
            "cores": cpu["logical"],
            "memory_bytes": environment["memory_bytes"],
            "gpus": len(environment["gpus"]),
        },
        "sessions": [asdict(each) for each in sessions],
    }


def judged(before: Mapping[str, Any]) -> dict[str, Any]:
    """The content of stamp.json for the runs of `before`, judged by the tree as it is."""
    head = _git("rev-parse", "HEAD").stdout.strip()
    return {**before, "judged": f"{head}-dirty" if _uncommitted() else head}


def _commit(environment: Mapping[str, Any]) -> str:
    """The commit of the code that made the runs; `-dirty` after it only where `src` or `conf` has
    changes that no commit has. Results that were kept just before are such changes to the tree, and
    none to the code.
    """
    revision = str(environment.get("git_revision") or "")
    if (
        not revision
        or not revision.endswith("-dirty")
        or environment["source_sha256"] != source_sha256()
    ):
        return revision
    return revision if _uncommitted() else revision.removesuffix("-dirty")


def _uncommitted() -> bool:
    """Whether `src` or `conf` has changes that no commit has; True too where git cannot say."""
    done = _git("status", "--porcelain", "--", "src", "conf")
    return done.returncode != 0 or bool(done.stdout.strip())


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False
    )
