"""Wrong clocks and scrambled mtimes: the same history under them, and a look at the source; what is
kept, chosen and named must not change.
"""

from __future__ import annotations

import ast
import os
import random
import re
import time
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ecrl_cli.checkpoint.store.checkpoint_log import CheckpointLog, save_and_record
from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.linux import clock
from ecrl_cli.records.events import Attempt, CheckpointLine
from ecrl_cli.records.journal import Journal, read_journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.studies.frame.store_fixture import store_config
from ecrl_cli.studies.frame.watched_fs import Unsynced
from ecrl_cli.studies.writers.store_fixture import payload
from ecrl_cli.supervision.resume import choose

DECIDES = (
    *(
        f"ecrl_cli.checkpoint.store.{name}"
        for name in ("catalog", "store", "atomic_install", "integrity", "fencing", "checkpoint_log")
    ),
    *(
        f"ecrl_cli.supervision.attempts.{name}"
        for name in ("restart_policy", "checkpoint_reconciliation", "supervisor_record")
    ),
    *(
        f"ecrl_cli.{name}"
        for name in ("checkpoint.format.manifest", "supervision.resume", "history.lineage")
    ),
    *("ecrl_cli.failures.plan", "ecrl_cli.failures.fault_log"),
)
# Compares a file's times with its own earlier ones, to see whether it was changed while it was
# verified: no time decides what is newer.
_UNCHANGED = ("_identity",)
_NEVER = {"getmtime", "getctime", "getatime", "utcnow", "now", "today"} | {
    f"st_{kind}time{unit}" for kind in "mca" for unit in ("", "_ns")
}
_CLOCKS = {"wall", "monotonic", "time", "time_ns", "clock_gettime"}
_DECIDES = (ast.Compare, ast.BoolOp)


def offences(source: str) -> list[str]:
    """Places where `source` reads a file's times, or uses a clock value in a comparison or a
    condition.
    """
    tree, found = ast.parse(source), []
    tree.body = [
        each
        for each in tree.body
        if not (isinstance(each, ast.FunctionDef) and each.name in _UNCHANGED)
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in _NEVER:
            found.append(f"line {node.lineno}: {node.attr}")
        tested = (
            node.test
            if isinstance(node, ast.If | ast.While | ast.IfExp)
            else node
            if isinstance(node, _DECIDES)
            else None
        )
        for part in ast.walk(tested) if tested is not None else ():
            if isinstance(part, ast.Call) and _name(part.func) in _CLOCKS:
                found.append(f"line {part.lineno}: {_name(part.func)}() decides")
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and (node.value.id, node.attr) == ("time", "time")
        ):
            found.append(f"line {node.lineno}: time.time")
    return sorted(set(found))


def source_of(module: str) -> str:
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).read_text(encoding="utf-8")


def _name(func: ast.expr) -> str:
    return (
        func.id
        if isinstance(func, ast.Name)
        else func.attr
        if isinstance(func, ast.Attribute)
        else ""
    )


HOUR, TEN_YEARS = 3600.0, 10 * 365.25 * 86400
JUMPS = ("back an hour", "ten years on", "stuck", "to and fro")
STEPS = (10, 20, 30, 40, 50)
_NONCE = re.compile(r"\.[0-9a-f]{8}(?=\.|$)")


class LyingTime:
    """Replaces the module `time` where the product reads clocks: correct for a while, then as
    `jump` says.
    """

    CLOCK_MONOTONIC = time.CLOCK_MONOTONIC

    def __init__(self, jump: str, rng: random.Random) -> None:
        self._jump, self._rng, self._left = jump, rng, rng.randrange(1, 30)
        self._stood = (time.time(), time.clock_gettime(time.CLOCK_MONOTONIC))

    def time(self) -> float:
        return self._lie(time.time(), self._stood[0])

    def clock_gettime(self, which: int) -> float:
        return self._lie(time.clock_gettime(which), self._stood[1])

    def _lie(self, now: float, stood: float) -> float:
        self._left -= 1
        if self._left >= 0 or not self._jump:
            return now
        far = self._rng.uniform(-TEN_YEARS, TEN_YEARS)
        return {
            "back an hour": now - HOUR,
            "ten years on": now + TEN_YEARS,
            "stuck": stood,
            "to and fro": now + far,
        }[self._jump]


def scenario(
    folder: Path,
    seed: int,
    layout: str,
    jump: str,
    rng: random.Random,
    store_kind: type[CheckpointStore] = CheckpointStore,
) -> dict[str, Any]:
    """Five saves with retention, damage to the newest, and a recovery: returns every decision
    taken.
    """
    run = RunLayout(folder)
    folder.mkdir()
    with (
        patch.object(clock, "time", LyingTime(jump, rng)),
        closing(store_kind(run.checkpoints, store_config("atomic_dirsync"), Unsynced())) as store,
    ):
        store.claim(0)
        journal = Journal(run.attempt(0).checkpoints)
        log = CheckpointLog(journal, run, 0)
        kept = []
        for step in STEPS:
            log.write("submitted", step)
            save_and_record(store, payload(seed).image(layout, step), 0, log)
            if jump:
                _scramble(run.checkpoints, rng)
            kept.append([entry.global_step for entry in store.entries()])
        journal.close()
        _damage(store.entries()[0].path)
        choice = choose(run, store, (Attempt(0, 1, outcome="died"),))
        events = [
            (line.event, line.global_step)
            for line in read_journal(run.attempt(0).checkpoints, CheckpointLine).events
        ]
    return {
        "kept": kept,
        "chosen": choice.report.global_step if choice.report else None,
        "refused": [(rejected.path, rejected.layer) for rejected in choice.rejected],
        "events": [list(event) for event in events],
        "names": sorted(
            _NONCE.sub("", path.relative_to(folder).as_posix()) for path in folder.rglob("*")
        ),
    }


def _scramble(folder: Path, rng: random.Random) -> None:
    for path in sorted(folder.rglob("*")):
        when = rng.uniform(0, 4e9)
        os.utime(path, (when, when), follow_symlinks=False)


def _damage(path: Path) -> None:
    data = path if path.suffix else path / "model.safetensors"
    content = bytearray(data.read_bytes())
    content[-1] ^= 1
    data.write_bytes(content)
