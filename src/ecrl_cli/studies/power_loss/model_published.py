"""The published protocol, tested like the store: each file of a group is installed by itself, in the final folder.

Its `atomic_dirsync` syncs the folder that contains the file; that folder's parent is never synced.
"""

from __future__ import annotations

from pathlib import Path

from ecrl_cli.checkpoint.format.hashing import ImageHasher
from ecrl_cli.checkpoint.format.image import CheckpointImage
from ecrl_cli.checkpoint.format.names import COMMIT, MANIFEST, step_name
from ecrl_cli.checkpoint.store.atomic_install import CommitJob
from ecrl_cli.checkpoint.store.store import CheckpointStore, Saved, StoreConfig
from ecrl_cli.storage.fs import Buffer
from ecrl_cli.storage.memory_fs import ModelFs
from ecrl_cli.storage.writing import replace_small, write_new
from ecrl_cli.studies.power_loss.workloads import ROOT


class PublishedStore(CheckpointStore):
    def save(self, image: CheckpointImage, attempt: int) -> Saved:
        work = CommitJob(self.fs, self.root, self.config.mode, self.points, self._pool, image, attempt, None)
        folder = self.root / step_name(image.stamp.global_step)
        self.fs.mkdir(folder)
        for part in image.parts:
            self._install(folder / part.name, work.memory_of(part.name))
        for name, data in image.documents.items():
            self._install(folder / name, data)
        manifest, commit = work.records(ImageHasher(image, self._pool).entries())
        self._install(folder / MANIFEST, manifest)
        self._install(folder / COMMIT, commit)
        assert work.commit is not None
        return Saved(folder, work.commit.self_sha256, image.nbytes, 0.0, 0.0)

    def _install(self, path: Path, data: Buffer) -> None:
        if not self.config.mode.atomic:
            write_new(self.fs, path, data, self.config.mode)
            return
        replace_small(self.fs, path, bytes(data), self.config.mode)
        self._sync(path.parent)


def published(fs: ModelFs, config: StoreConfig) -> CheckpointStore:
    return PublishedStore(ROOT, config, fs)
