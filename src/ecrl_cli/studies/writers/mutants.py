"""Bugs planted into the protocol of two writers. Each runs over the cell in which it must show; the
study must find all.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ecrl_cli.checkpoint.store import catalog
from ecrl_cli.checkpoint.store.atomic_install import SingleInstaller
from ecrl_cli.checkpoint.store.catalog import CheckpointEntry, ResumeChoice
from ecrl_cli.checkpoint.store.fencing import FencingToken
from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.errors import StorageError
from ecrl_cli.storage.fs_wrapper import FsWrapper
from ecrl_cli.studies.mutants import override
from ecrl_cli.studies.writers import clocks, fencing, flaky_nfs
from ecrl_cli.studies.writers.store_fixture import PRODUCT, CommittedStore, WriterKind


class _LooksOnce(FencingToken):
    """Checks the fence before the build and never again."""

    _looked = False

    @override
    def check(self, attempt: int) -> int:
        if self._looked:
            return attempt
        self._looked = True
        return super().check(attempt)


class _NeverLooks(FencingToken):
    @override
    def check(self, attempt: int) -> int:
        return -1


class _NoCheckAfterTheBuild(CheckpointStore):
    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        assert type(self._fencing) is FencingToken  # the store asks this object, which is replaced
        self._fencing = _LooksOnce(self.fs, self.root)


class _NoFence(CheckpointStore):
    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        assert type(self._fencing) is FencingToken  # the store asks this object, which is replaced
        self._fencing = _NeverLooks(self.fs, self.root)


class _ByMtime(CheckpointStore):
    """Takes the name with the latest mtime for the newest."""

    @override
    def entries(self) -> list[CheckpointEntry]:
        return sorted(
            super().entries(), key=lambda entry: entry.path.lstat().st_mtime, reverse=True
        )

    @override
    def newest_valid(self) -> ResumeChoice:
        return catalog._first_valid(self.entries(), self.root, self.verify)


class _LooksAtTheFolderOnce(CheckpointStore):
    """Lists once and checks each name once: what is moved or arrives meanwhile counts as
    rejected.
    """

    @override
    def newest_valid(self) -> ResumeChoice:
        return catalog._first_valid(self.entries(), self.root, self.verify)


class _Overwrites(FsWrapper):
    @override
    def rename(self, source: Path, target: Path, *, replace: bool) -> None:
        super().rename(source, target, replace=True)


def _undo_by_name(self: SingleInstaller, ours: object = None) -> None:
    """Removes the names it has created, even if another writer owns them by now."""
    for path in reversed(self._made):
        with suppress(StorageError):
            self.work.fs.unlink(path)


@contextmanager
def _undoing_by_name() -> Iterator[None]:
    with patch.object(SingleInstaller, "undo", _undo_by_name):
        yield


@dataclass(frozen=True)
class WriterMutant:
    """`cell`: arm and facts of the trials in which it must show. `around`: context in which they
    run.
    """

    name: str
    cell: dict[str, Any]
    kind: WriterKind = PRODUCT
    around: Callable[[], Any] = nullcontext


WRITER_MUTANTS = (
    WriterMutant(
        "no look at the fence after the build",
        {"arm": "fence", "mode": "unsafe", "layout": "group", "newer": "claim"},
        WriterKind(_NoCheckAfterTheBuild),
    ),
    WriterMutant(
        "no fence at all",
        {"arm": "fence", "mode": "unsafe", "layout": "single", "newer": "claim"},
        WriterKind(_NoFence),
    ),
    WriterMutant(
        "a rename that overwrites",
        {"arm": "publish", "mode": "atomic_dirsync", "layout": "single", "newer": "other"},
        WriterKind(wrap=_Overwrites),
    ),
    WriterMutant(
        "clearing up by name",
        {"arm": "fence", "mode": "atomic_dirsync", "layout": "single", "newer": "other"},
        around=_undoing_by_name,
    ),
    WriterMutant("newest by mtime", {"arm": "clock", "layout": "group"}, WriterKind(_ByMtime)),
    WriterMutant(
        "one look at the folder, reader",
        {"arm": "reader", "layout": "group", "saves": 3},
        WriterKind(_LooksAtTheFolderOnce),
    ),
    WriterMutant(
        "one look at the folder, network",
        {"arm": "remote", "layout": "group", "phase": "recovery"},
        WriterKind(_LooksAtTheFolderOnce),
    ),
)


def run(name: str, history: CommittedStore, seed: int, folder: Path) -> dict[str, Any]:
    """How many of the cell's trials show the bug, and how many there are."""
    bug = next(bug for bug in WRITER_MUTANTS if bug.name == name)
    with bug.around():
        shown = list(_shown(bug, history, seed, folder))
    return {"shown": sum(shown), "tried": len(shown)}


def _shown(bug: WriterMutant, history: CommittedStore, seed: int, folder: Path) -> Iterator[bool]:
    arm = bug.cell["arm"]
    if arm == "clock":
        yield from _mtimes(bug, seed, folder)
        return
    every = {
        "reader": lambda: fencing.reader_trials(history, seed, folder, 1),
        "remote": lambda: flaky_nfs.trials(history, seed, folder),
    }
    folder.mkdir(exist_ok=True)
    trials = every.get(arm, lambda: fencing.trials(history, seed, folder))()
    inside = [
        trial.facts
        for trial in trials
        if bug.cell.items() <= trial.facts.items() and trial.facts.get("at", 0) >= 0
    ]
    for facts in inside:
        if arm == "reader":
            yield bool(fencing.run_reader(history, seed, folder / "t", facts, bug.kind)["misled"])
        elif arm == "remote":
            yield not flaky_nfs.sound(flaky_nfs.run(history, seed, folder / "t", facts, bug.kind))
        else:
            yield not fencing.sound(
                fencing.run(history, seed, folder / "t", facts, bug.kind), facts
            )
    shutil.rmtree(folder)


def _mtimes(bug: WriterMutant, seed: int, folder: Path) -> Iterator[bool]:
    honest = clocks.scenario(folder, seed, bug.cell["layout"], "", random.Random(0))
    shutil.rmtree(folder)
    for number in range(5):
        told = clocks.scenario(
            folder, seed, bug.cell["layout"], "to and fro", random.Random(number), bug.kind.store
        )
        shutil.rmtree(folder)
        yield told != honest
