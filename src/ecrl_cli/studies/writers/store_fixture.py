"""Shared by the study's arms: small checkpoints, a folder with a history, and a file system that lets another writer act between two calls."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from ecrl_cli.checkpoint.format.image import CheckpointImage
from ecrl_cli.checkpoint.format.manifest import Components, components
from ecrl_cli.checkpoint.store.integrity import IntegrityConfig
from ecrl_cli.checkpoint.store.store import CheckpointStore, StoreConfig
from ecrl_cli.checkpoint.store.synthetic import RUN_ID, image_components, synthetic_image, synthetic_plan
from ecrl_cli.storage.fs import Fs, PosixFs
from ecrl_cli.storage.fs_wrapper import FsWrapper
from ecrl_cli.studies.frame.write_modes import write_mode

FIRST, OLD, LATER = 10, 20, 30  # steps: the history's, the one that the old writer saves, a later one
MODEL_BYTES, OPTIMIZER_BYTES = 4096, 2048
T = TypeVar("T")
Wrap = Callable[[Fs], Fs]


class Unsynced(PosixFs):
    """The real file system without syncs: there is no power loss here, and the order of the other calls is unchanged."""

    def fsync(self, fd: int) -> None:
        """Nothing is lost."""

    def fsyncdir(self, path: Path) -> None:
        """Nothing is lost."""


@dataclass(frozen=True)
class Kind:
    """How a writer is built: the product's, or one with a planted bug."""

    store: type[CheckpointStore] = CheckpointStore
    wrap: Wrap = lambda fs: fs

    def open(self, root: Path, mode: str, fs: Fs | None = None) -> CheckpointStore:
        return self.store(root, config(mode), self.wrap(fs or Unsynced()))


PRODUCT = Kind()


def config(mode: str) -> StoreConfig:
    return StoreConfig(mode=write_mode(mode), keep=2, integrity=IntegrityConfig(run_id=RUN_ID))


@cache
def image(seed: int, step: int, layout: str) -> CheckpointImage:
    return synthetic_image(seed, step, synthetic_plan(MODEL_BYTES, OPTIMIZER_BYTES, single=layout == "single"))


@cache
def content(seed: int, step: int, layout: str) -> Components:
    return image_components(image(seed, step, layout))


class History:
    """A store with one acknowledged checkpoint, made once and copied for each trial."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._seed = folder, seed

    @contextmanager
    def copied(self, layout: str, target: Path) -> Iterator[Path]:
        """A fresh copy at `target`, removed on exit; yields its checkpoints folder."""
        shutil.copytree(self._made(layout), target, symlinks=True)
        try:
            yield target / "checkpoints"
        finally:
            shutil.rmtree(target)

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _made(self, layout: str) -> Path:
        folder = self._folder / layout
        if not folder.exists():
            folder.mkdir(parents=True)
            with closing(CheckpointStore(folder / "checkpoints", config("atomic_dirsync"))) as store:
                store.claim(0)
                first = image(self._seed, FIRST, layout)
                store.update_pointers_and_retire(store.save(first, 0), first)
        return folder


class InterleavingFs(FsWrapper):
    """Lets `act` run once, before the call numbered `at`. `calls`: the names of those made so far."""

    def __init__(self, fs: Fs, at: int = -1, act: Callable[[], None] = lambda: None) -> None:
        super().__init__(fs)
        self._at, self._act, self._lock = at, act, threading.Lock()
        self.calls: list[str] = []

    def around(self, call: str, path: Path, act: Callable[[], T]) -> T:
        with self._lock:
            number = len(self.calls)
            self.calls.append(call)
        if number == self._at:
            self._act()
        return act()


@dataclass(frozen=True)
class Ack:
    """An acknowledged save, and the content it must have."""

    step: int
    commit_sha256: str
    content: Components


def judge(root: Path, mode: str, acks: list[Ack], known: list[tuple[int, Components]]) -> str:
    """The outcome class: what recovery finds in `root` against the acknowledged saves. `known`: every state that any writer tried to save."""
    with closing(CheckpointStore(root, config(mode))) as store:
        choice = store.newest_valid()
        newest = max(ack.step for ack in acks)
        if choice.report is None or choice.report.manifest is None:
            return "lost_all"
        step = choice.report.global_step or 0
        if (step, components(choice.report.manifest)) not in known:
            return "silent_wrong"
        for ack in acks:
            if ack.step > FIRST:
                found = next((store.verify(entry.path) for entry in store.entries() if entry.global_step == ack.step), None)
                if found is None or not found.ok or found.manifest is None or found.commit_sha256 != ack.commit_sha256:
                    return "lost_ack"
                if components(found.manifest) != ack.content:
                    return "silent_wrong"
        return "new" if step >= newest else "lost_ack"
