"""The checkpoint store as a test subject: the product's code in a mode and a layout, or with a
planted fault.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ecrl_cli.checkpoint.format.manifest import components
from ecrl_cli.checkpoint.format.names import STAGE_PREFIX
from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.errors import EcrlError
from ecrl_cli.storage.fs import PosixFs
from ecrl_cli.studies.frame.store_fixture import Payload, store_config
from ecrl_cli.studies.mutants.registry import forgets_files, forgets_folders

Acknowledge = Callable[[int], None]
Mark = Callable[[str], None]

# Planted into `atomic_dirsync`, with what each breaks.
PLANTS = {
    "no_root_sync": "the folder of the checkpoints is not synced",
    "no_file_sync": "the files are not synced",
    "ack_when_begun": "acknowledged before anything is written",
    "no_parent_sync": "the run directory is not synced",
}
SETTLED = "settled"  # no fault: pointers and retention follow each save, as in training


@dataclass(frozen=True)
class Recovered:
    """`step`: the newest that the subject's own reader accepts (None: none). `exact`: its content
    is what was saved. `refused`: newer ones rejected. `goes_on`: the next save works and is found
    (None if not tried).
    """

    step: int | None
    exact: bool
    refused: int
    goes_on: bool | None = None


class Subject(Protocol):
    """Code that saves checkpoints in its own folder."""

    def begin(self) -> None:
        """In the saving process, before the first save."""

    def save(self, step: int, acknowledge: Acknowledge) -> None:
        """Save; call `acknowledge` at the moment the real caller would be told that the checkpoint
        is saved.
        """

    def recover(self, *, go_on: bool) -> Recovered:
        """Runs in another process after the power loss. `go_on`: save the next one too, if the
        subject is a store.
        """


# The file system of those that leave out a sync.
_FORGETFUL = {
    "no_root_sync": forgets_folders(lambda path, root: path == root),
    "no_file_sync": forgets_files(lambda path: path.parent.name.startswith(STAGE_PREFIX)),
    "no_parent_sync": forgets_folders(lambda path, root: path == root.parent),
}


class StoreSubject:
    """`mark` is called at each protocol point of the save."""

    def __init__(
        self,
        folder: Path,
        payload: Payload,
        mode: str,
        layout: str,
        variant: str = "",
        mark: Mark = lambda _: None,
    ) -> None:
        self._root, self._payload, self._variant, self._mark = (
            folder / "checkpoints",
            payload,
            variant,
            mark,
        )
        self._layout, self._config = layout, store_config(mode, keep=3)
        fs = _FORGETFUL[variant](PosixFs(), self._root) if variant in _FORGETFUL else PosixFs()
        self._store = CheckpointStore(self._root, self._config, fs, self._point)
        self._early: Callable[[], None] = lambda: None

    def begin(self) -> None:
        self._store.claim(0)

    def save(self, step: int, acknowledge: Acknowledge) -> None:
        image = self._payload.image(self._layout, step)
        early = self._variant == "ack_when_begun"
        if early:
            self._early = lambda: acknowledge(step)
        saved = self._store.save(image, 0)
        if not early:
            acknowledge(step)
        if self._variant == SETTLED:
            self._store.update_pointers_and_retire(saved, image)

    def recover(self, *, go_on: bool) -> Recovered:
        store = CheckpointStore(self._root, self._config)
        try:
            choice = store.newest_valid()
            report = choice.report
            step = report.global_step if report else None
            exact = step is None or (
                report is not None
                and report.manifest is not None
                and components(report.manifest) == self._payload.content(self._layout, step)
            )
            return Recovered(
                step,
                exact,
                len(choice.rejected),
                self._goes_on(store, (step or 0) + 1) if go_on else None,
            )
        finally:
            store.close()

    def _goes_on(self, store: CheckpointStore, step: int) -> bool:
        image = self._payload.image(self._layout, step)
        try:
            store.claim(1)
            store.update_pointers_and_retire(store.save(image, 1), image)
        except EcrlError:
            return False
        report = store.newest_valid().report
        return report is not None and report.global_step == step

    def _point(self, name: str) -> None:
        self._mark(name.partition(":")[0])
        if name == "before_stage":
            self._early()
