"""The readers of the attacked run: integrity check, recovery, readers of records, configuration,
and commands; each in a process certain to end.

`python -m ecrl_cli.studies.hostile.readers PATH` loads a checkpoint as a rank does, and prints the
reason of a rejection.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from ecrl_cli.checkpoint.store.integrity import verify_checkpoint
from ecrl_cli.checkpoint.store.store import CheckpointStore, StoreConfig
from ecrl_cli.config.build import build
from ecrl_cli.errors import EcrlError
from ecrl_cli.history.load import load
from ecrl_cli.runs.sweep import read_manifest
from ecrl_cli.storage.fs import PosixFs
from ecrl_cli.studies.frame.child import forked
from ecrl_cli.studies.frame.store_fixture import GUARD
from ecrl_cli.studies.frame.watched_fs import InterleavingFs
from ecrl_cli.studies.hostile.inputs import TREES
from ecrl_cli.studies.hostile.store_fixture import STEPS, MaliciousInput, RunFixture
from ecrl_cli.supervision.launch.child_environment import child_environment
from ecrl_cli.supervision.run_lock import run_lock

# bytes of address space beyond the current use, so that a decompression bomb cannot exhaust the
# machine
ROOM = 2 * 2**30


def isolated(act: Callable[[], dict[str, Any]], seconds: float, room: int = ROOM) -> dict[str, Any]:
    """The result of `act` in a forked child; outcome `hung` if it takes longer than `seconds`,
    `untyped` if it dies.

    `room`: additional bytes it may allocate (0: unlimited, for programs with libraries of their
    own).
    """

    def limited() -> dict[str, Any]:
        if room:
            most = psutil.Process().memory_info().vms + room
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
        return act()

    found, end = forked(limited, seconds)
    if end:
        outcome, reason = (
            ("hung", f"no answer within {seconds:g} s")
            if end == "hung"
            else ("untyped", "the process died")
        )
        return {"outcome": outcome, "by": "nobody", "reason": reason}
    answer: dict[str, Any] = found
    return answer


COMMAND_S = 60.0
PROGRAMS = ("load", "command")  # readers that are separate programs, as they import torch or Hydra


@dataclass(frozen=True)
class ReadOutcome:
    """`outcome`: detected, silent_wrong (accepted), untyped or hung. `by`: what rejected it,
    `reason`: its message.
    """

    outcome: str
    by: str
    reason: str = ""


def read_input(hostile: MaliciousInput, fixture: RunFixture) -> ReadOutcome:
    """Read the input and classify the result. Never raises."""
    name, _, rest = hostile.look.partition(" ")
    try:
        return _LOOKS[name](hostile, fixture, rest)
    except EcrlError as error:
        return ReadOutcome("detected", type(error).__name__, error.line()[:200])
    except MemoryError:
        return ReadOutcome("untyped", "MemoryError")
    except Exception as error:
        return ReadOutcome("untyped", type(error).__name__, str(error)[:200])


def _integrity_check(hostile: MaliciousInput, fixture: RunFixture, what: str) -> ReadOutcome:
    watched = InterleavingFs(
        PosixFs(), hostile.at, lambda: hostile.during(fixture) if hostile.during else None
    )
    report = verify_checkpoint(
        fixture.single if what == "single" else fixture.group, GUARD, watched
    )
    # it was valid when read; changes since then are for the next reader
    if report.ok and hostile.during:
        return ReadOutcome("detected", "nothing was wrong yet")
    return (
        ReadOutcome("silent_wrong", "nobody")
        if report.ok
        else ReadOutcome("detected", report.layer, report.reason)
    )


def _newest(hostile: MaliciousInput, fixture: RunFixture, what: str) -> ReadOutcome:
    """Chooses a checkpoint as the next attempt does: after claiming the store."""
    with closing(CheckpointStore(fixture.group.parent, StoreConfig(integrity=GUARD))) as store:
        store.claim(1)
        choice = store.newest_valid()
    if choice.report is None or choice.report.global_step != STEPS[-1]:
        return ReadOutcome(
            "silent_wrong",
            "nobody",
            f"chose {choice.report.global_step if choice.report else None}",
        )
    if not choice.rejected:
        return ReadOutcome("detected", "passed over")
    return ReadOutcome("detected", choice.rejected[0].layer, choice.rejected[0].reason)


def _records(hostile: MaliciousInput, fixture: RunFixture, what: str) -> ReadOutcome:
    """Read the run as `verify` and the supervisor do; the error must name the file."""
    target = hostile.refusers[0]
    try:
        found = load(fixture.layout)
    except EcrlError as error:
        named = target if Path(target).name in error.key else error.key
        return ReadOutcome("detected", named, error.line()[:200])
    reasons = {one.path: one.reason for one in found.unread} | dict.fromkeys(found.torn, "torn")
    if target in reasons:
        return ReadOutcome("detected", target, reasons[target][:200])
    folder_gone = not found.attempts and target.startswith("logs/")
    return (
        ReadOutcome("detected", target, "no log of the attempt")
        if folder_gone
        else ReadOutcome("silent_wrong", "nobody", str(sorted(reasons))[:200])
    )


def _sweep(hostile: MaliciousInput, fixture: RunFixture, what: str) -> ReadOutcome:
    rows = read_manifest(fixture.root / "manifest.csv")
    return ReadOutcome("silent_wrong", "nobody", f"{len(rows)} rows")


def _lock(hostile: MaliciousInput, fixture: RunFixture, what: str) -> ReadOutcome:
    with run_lock(fixture.layout):
        return ReadOutcome("silent_wrong", "nobody")


def _build(hostile: MaliciousInput, fixture: RunFixture, what: str) -> ReadOutcome:
    build(TREES[what])
    return ReadOutcome("silent_wrong", "nobody")


def _load(hostile: MaliciousInput, fixture: RunFixture, what: str) -> ReadOutcome:
    """The only reader that uses torch, as a separate program."""
    return _program(
        ["-m", "ecrl_cli.studies.hostile.readers", str(fixture.single.with_suffix(".pt"))], fixture
    )


def _command(hostile: MaliciousInput, fixture: RunFixture, what: str) -> ReadOutcome:
    words = [
        word.replace("{run}", str(fixture.root)).replace("{outside}", str(fixture.outside))
        for word in hostile.words
    ]
    return _program(["-m", "ecrl_cli.cli.main", *words], fixture)


def _program(words: list[str], fixture: RunFixture) -> ReadOutcome:
    """Run Python with `words`; a rejection is one line on stderr, or a verdict, and an exit
    code.
    """
    environment = child_environment(None, 1)
    try:
        ended = subprocess.run(
            [sys.executable, *words],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_S,
            cwd=fixture.root,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ReadOutcome("hung", "nobody")
    if "Traceback" in ended.stderr or ended.returncode < 0:
        return ReadOutcome("untyped", f"exit {ended.returncode}", ended.stderr[-200:])
    said = (ended.stderr.strip() or ended.stdout.strip())[:200]
    if ended.returncode == 0:
        return ReadOutcome("silent_wrong", "nobody", said)
    kind = next(
        (word for word in ("StorageError",) if said.startswith(word)), f"exit {ended.returncode}"
    )
    return ReadOutcome("detected", kind, said)


_LOOKS: dict[str, Callable[[MaliciousInput, RunFixture, str], ReadOutcome]] = {
    "guard": _integrity_check,
    "newest": _newest,
    "records": _records,
    "sweep": _sweep,
    "lock": _lock,
    "build": _build,
    "load": _load,
    "command": _command,
}


def measured(hostile: MaliciousInput, fixture: RunFixture) -> dict[str, Any]:
    """Like `read_input`, with its cost to this process: growth of resident memory, bytes and calls
    of reading (for a program: its peak memory).
    """
    process = psutil.Process()
    resident = process.memory_info().rss
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # resets the peak
    before = process.io_counters()
    seen = read_input(hostile, fixture)
    after = process.io_counters()
    grown = max(0, _peak() - resident)
    programs = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    cost = {
        "grown": grown,
        "read": after.read_chars - before.read_chars,
        "calls": after.read_count - before.read_count,
        "program": programs,
    }
    return {"outcome": seen.outcome, "by": seen.by, "reason": seen.reason, **cost}


def _peak() -> int:
    """The most resident memory since `clear_refs`, in bytes; psutil has no such value."""
    line = next(
        line
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        if line.startswith("VmHWM:")
    )
    return int(line.split()[1]) * 1024


def load_as_a_rank(path: str) -> int:
    """The exit code. The only code of the study, beside its control, that imports torch: in a
    program of its own.
    """
    from ecrl_cli.checkpoint.capture.loading import load_checkpoint

    try:
        load_checkpoint(Path(path))
    except EcrlError as error:
        sys.stderr.write(f"{type(error).__name__}: {error.line()}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(load_as_a_rank(sys.argv[1]))
