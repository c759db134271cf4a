"""The checkpoint store as a test subject: the product's code in a mode and a layout, or with a planted fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ecrl_cli.checkpoint.format.image import CheckpointImage
from ecrl_cli.checkpoint.format.manifest import components
from ecrl_cli.checkpoint.format.names import STAGE_PREFIX
from ecrl_cli.checkpoint.store.integrity import IntegrityConfig
from ecrl_cli.checkpoint.store.store import CheckpointStore, StoreConfig
from ecrl_cli.checkpoint.store.synthetic import RUN_ID, image_components, synthetic_image, synthetic_plan
from ecrl_cli.errors import EcrlError
from ecrl_cli.storage.fs import PosixFs
from ecrl_cli.studies.frame.store_fixture import write_mode

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
class Payload:
    """The content saved at `step` is a function of (seed, step) and these sizes."""

    seed: int
    model_bytes: int
    optimizer_bytes: int


@dataclass(frozen=True)
class Recovered:
    """`step`: the newest that the subject's own reader accepts (None: none). `exact`: its content is what was saved. `refused`: newer ones
    rejected. `goes_on`: the next save works and is found (None if not tried)."""

    step: int | None
    exact: bool
    refused: int
    goes_on: bool | None = None


class Subject(Protocol):
    """Code that saves checkpoints in its own folder."""

    def begin(self) -> None:
        """In the saving process, before the first save."""

    def save(self, step: int, acknowledge: Acknowledge) -> None:
        """Save; call `acknowledge` at the moment the real caller would be told that the checkpoint is saved."""

    def recover(self, *, go_on: bool) -> Recovered:
        """Runs in another process after the power loss. `go_on`: save the next one too, if the subject is a store."""


class _Forgetful(PosixFs):
    """Leaves out the syncs named by `variant`."""

    def __init__(self, variant: str, root: Path) -> None:
        super().__init__()
        self._variant, self._root = variant, root

    def fsync(self, fd: int) -> None:
        if self._variant != "no_file_sync" or not self._path(fd).parent.name.startswith(STAGE_PREFIX):
            super().fsync(fd)

    def fsyncdir(self, path: Path) -> None:
        left_out = {"no_root_sync": self._root, "no_parent_sync": self._root.parent}
        if left_out.get(self._variant) != path:
            super().fsyncdir(path)


class StoreSubject:
    """`mark` is called at each protocol point of the save."""

    def __init__(self, folder: Path, payload: Payload, mode: str, layout: str, variant: str = "", mark: Mark = lambda _: None) -> None:
        self._root, self._payload, self._variant, self._mark = folder / "checkpoints", payload, variant, mark
        self._plan = synthetic_plan(payload.model_bytes, payload.optimizer_bytes, single=layout == "single")
        self._config = StoreConfig(mode=write_mode(mode), integrity=IntegrityConfig(run_id=RUN_ID))
        self._store = CheckpointStore(self._root, self._config, _Forgetful(variant, self._root), self._point)
        self._early: Callable[[], None] = lambda: None

    def begin(self) -> None:
        self._store.claim(0)

    def save(self, step: int, acknowledge: Acknowledge) -> None:
        image = self._image(step)
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
            exact = step is None or (report is not None and report.manifest is not None and components(report.manifest) == self._expected(step))
            return Recovered(step, exact, len(choice.rejected), self._goes_on(store, (step or 0) + 1) if go_on else None)
        finally:
            store.close()

    def _goes_on(self, store: CheckpointStore, step: int) -> bool:
        image = self._image(step)
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

    def _image(self, step: int) -> CheckpointImage:
        return synthetic_image(self._payload.seed, step, self._plan)

    def _expected(self, step: int) -> object:
        return image_components(self._image(step))
