"""Checkpoints of the simulated run, written and read by the project's own checkpoint code, and timed."""

from __future__ import annotations

from pathlib import Path

from ecrl_cli.checkpoint.capture.shared_memory import Memory
from ecrl_cli.checkpoint.capture.staging_buffer import CapturePlanner, StagingBuffer
from ecrl_cli.checkpoint.format.image import CheckpointImage, CheckpointMeta
from ecrl_cli.checkpoint.format.names import TRAIN
from ecrl_cli.checkpoint.format.train_document import TrainPosition
from ecrl_cli.checkpoint.store.store import CheckpointStore, Saved, StoreConfig
from ecrl_cli.checkpoint.store.synthetic import RUN_ID
from ecrl_cli.errors import EvidenceMissing
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.replication.mini_batch.simulated_trainer import Trainee


class Checkpoints:
    """`saving_s`, `loading_s`: seconds per save and per load."""

    def __init__(self, folder: Path, trainee: Trainee) -> None:
        self._trainee = trainee
        self._store = CheckpointStore(folder, StoreConfig(keep=2))
        self._store.claim(0)
        self._snapshotter = CapturePlanner(trainee.train_state, "")
        self._slot: StagingBuffer | None = None
        self._latest: Saved | None = None
        self.saving_s: list[float] = []
        self.loading_s: list[float] = []

    def save(self, done: int) -> None:
        """Save the state after `done` mini-batches; returns once it is durable."""
        began = monotonic()
        progress = TrainPosition(done, 0, 0, 0, "")
        gathered = self._trainee.train_state.gather(progress)
        layout = self._snapshotter.refresh(gathered)
        if self._slot is None or self._slot.layout != layout:
            self._drop_slot()
            self._slot = StagingBuffer(Memory.create(layout.nbytes), layout, self._trainee.train_state.device)
        self._slot.capture(self._snapshotter.found)
        train = self._trainee.train_state.train_document(progress, gathered.line_chain)
        image = CheckpointImage(CheckpointMeta(RUN_ID, done, 0, 0, 0, 1), self._slot.memory.view, layout.parts(done, 0), {TRAIN: train})
        self._latest = self._store.save(image, 0)
        self._store.update_pointers_and_retire(self._latest, image)
        self.saving_s.append(monotonic() - began)

    def restore(self) -> int:
        """Load the last saved state; returns the number of mini-batches done by then."""
        if self._latest is None:
            raise EvidenceMissing("checkpoint", "none has been taken", "save one first")
        began = monotonic()
        self._trainee.optimizer.state.clear()
        found = self._trainee.train_state.restore(self._latest.path, self._latest.commit_sha256)
        self.loading_s.append(monotonic() - began)
        return found.global_step

    def close(self) -> None:
        self._drop_slot()
        self._store.close()

    def _drop_slot(self) -> None:
        if self._slot is not None:
            self._slot.close()
            self._slot = None
