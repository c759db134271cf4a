"""Shared by the study's arms: small checkpoints, a folder with a history, and a file system that
lets another writer act between two calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ecrl_cli.checkpoint.format.manifest import Components, components
from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.storage.fs import Fs
from ecrl_cli.studies.frame.store_fixture import Payload, Template, save_all, store_config
from ecrl_cli.studies.frame.watched_fs import Unsynced

# steps: the history's, the one that the old writer saves, a later one
FIRST, OLD, LATER = 10, 20, 30
Wrap = Callable[[Fs], Fs]


@dataclass(frozen=True)
class WriterKind:
    """How a writer is built: the product's, or one with a planted bug."""

    store: type[CheckpointStore] = CheckpointStore
    wrap: Wrap = lambda fs: fs

    def open(self, root: Path, mode: str, fs: Fs | None = None) -> CheckpointStore:
        return self.store(root, store_config(mode), self.wrap(fs or Unsynced()))


PRODUCT = WriterKind()


def payload(seed: int) -> Payload:
    return Payload(seed, 4096, 2048)


class CommittedStore:
    """A store with one acknowledged checkpoint per layout, made once and copied for each trial."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._template = Template(folder, self._make)
        self._seed = seed
        self.close = self._template.close

    @contextmanager
    def copied(self, layout: str, target: Path) -> Iterator[Path]:
        """A fresh copy at `target`, removed on exit; yields its checkpoints folder."""
        with self._template.copied(layout, target):
            yield target / "checkpoints"

    def _make(self, layout: str, folder: Path) -> None:
        root = folder / "checkpoints"
        with closing(CheckpointStore(root, store_config("atomic_dirsync"))) as store:
            save_all(store, [payload(self._seed).image(layout, FIRST)])


@dataclass(frozen=True)
class Ack:
    """An acknowledged save, and the content it must have."""

    step: int
    commit_sha256: str
    content: Components


def judge(root: Path, mode: str, acks: list[Ack], known: list[tuple[int, Components]]) -> str:
    """The outcome class: what recovery finds in `root` against the acknowledged saves. `known`:
    every state that any writer tried to save.
    """
    with closing(CheckpointStore(root, store_config(mode))) as store:
        choice = store.newest_valid()
        newest = max(ack.step for ack in acks)
        if choice.report is None or choice.report.manifest is None:
            return "lost_all"
        step = choice.report.global_step or 0
        if (step, components(choice.report.manifest)) not in known:
            return "silent_wrong"
        for ack in acks:
            if ack.step > FIRST:
                found = next(
                    (
                        store.verify(entry.path)
                        for entry in store.entries()
                        if entry.global_step == ack.step
                    ),
                    None,
                )
                if (
                    found is None
                    or not found.ok
                    or found.manifest is None
                    or found.commit_sha256 != ack.commit_sha256
                ):
                    return "lost_ack"
                if components(found.manifest) != ack.content:
                    return "silent_wrong"
        return "new" if step >= newest else "lost_ack"
