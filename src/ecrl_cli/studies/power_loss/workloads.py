"""The workloads that are interrupted at every moment, by the store and by the published protocol,
and what was acknowledged by then.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ecrl_cli.checkpoint.format.hashing import ImageHasher
from ecrl_cli.checkpoint.format.image import CheckpointImage
from ecrl_cli.checkpoint.format.names import (
    COMMIT,
    MANIFEST,
    MODEL,
    RNG,
    STAGE_PREFIX,
    TRASH_PREFIX,
    step_name,
)
from ecrl_cli.checkpoint.store.atomic_install import CommitJob
from ecrl_cli.checkpoint.store.store import CheckpointStore, Saved, StoreConfig
from ecrl_cli.storage.fs import Buffer
from ecrl_cli.storage.memory_fs import ModelFs
from ecrl_cli.storage.writing import replace_small, write_new
from ecrl_cli.studies.frame.store_fixture import Payload, store_config
from ecrl_cli.studies.power_loss.model_disk import Forest, ModelDisk

RUN = Path("/run")
ROOT = RUN / "checkpoints"

MakeStore = Callable[[ModelFs, StoreConfig], CheckpointStore]


def honest(fs: ModelFs, config: StoreConfig) -> CheckpointStore:
    return CheckpointStore(ROOT, config, fs)


def image_of(seed: int, step: int, single: bool) -> CheckpointImage:
    return Payload(seed, 9000, 5000).image("single" if single else "group", step)


@dataclass
class WorkloadRun:
    """A store on an in-memory file system. `begun`, `acked`: (calls made by then, step). `start`:
    the nodes when the calls began, `begins_with`: the same as a tree.
    """

    mode: str
    single: bool
    seed: int
    make: MakeStore = honest
    begun: list[tuple[int, int]] = field(default_factory=list)
    acked: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.opened({})

    def opened(self, tree: dict[str, Any]) -> None:
        """A new process on a disk that holds `tree`; earlier starts and acknowledgements are
        kept.
        """
        self.fs, self.start, self.begins_with = ModelFs(RUN, tree), ModelFs(RUN, tree).nodes, tree
        self.begun, self.acked = (
            [(0, step) for _, step in self.begun],
            [(0, step) for _, step in self.acked],
        )
        self.store = self.make(self.fs, store_config(self.mode))

    def save(self, step: int, attempt: int = 0) -> tuple[Saved, CheckpointImage]:
        image = image_of(self.seed, step, self.single)
        self.begun.append((len(self.fs.log), step))
        saved = self.store.save(image, attempt)
        self.acked.append((len(self.fs.log), step))
        return saved, image

    def save_and_retire(self, step: int, attempt: int = 0) -> None:
        self.store.update_pointers_and_retire(*self.save(step, attempt))

    def recover(self, attempt: int) -> None:
        """Recovers as a supervisor does before it starts an attempt."""
        self.store.claim(attempt)
        for rejected in self.store.newest_valid().rejected:
            self.store.quarantine(RUN / rejected.path)

    def tree(self, calls: int | None = None) -> dict[str, Any]:
        """The whole disk after the first `calls` calls (None: all)."""
        forest = Forest()
        disk = ModelDisk(forest, self.start, "P", 1, random.Random(0))
        for op in self.fs.log[:calls]:
            disk.take(op)
        tree = forest.tree(disk.states().numbers[0])
        assert isinstance(tree, dict)
        return tree

    def half_written(self) -> int:
        """Number of calls before the last write to the newest model part."""
        step = step_name(self.begun[-1][1])[-8:]
        single = [
            op.node
            for op in self.fs.log
            if op.kind == "create" and step in op.name and op.name.endswith(".safetensors")
        ]
        data = single or [op.node for op in self.fs.log if op.kind == "create" and op.name == MODEL]
        return max(
            index
            for index, op in enumerate(self.fs.log)
            if op.kind == "write" and op.node == data[-1]
        )


def first(run: WorkloadRun) -> None:
    """An empty disk, without checkpoints/."""
    run.store.claim(0)
    run.save(1)


def one(run: WorkloadRun) -> None:
    _claimed(run)
    run.save(1)


def two(run: WorkloadRun) -> None:
    _claimed(run)
    run.save(1)
    run.save(2)


def pointer(run: WorkloadRun) -> None:
    _claimed(run)
    run.save_and_retire(1)


def retention(run: WorkloadRun) -> None:
    """Keeps two: the third save retires the first."""
    _claimed(run)
    for step in (1, 2, 3):
        run.save_and_retire(step)


def overlapped(run: WorkloadRun) -> None:
    """Two in flight: the second was submitted before the first was written, and follows
    immediately.
    """
    _claimed(run)
    images = [image_of(run.seed, step, run.single) for step in (1, 2)]
    run.begun += [(0, image.stamp.global_step) for image in images]
    for step in (1, 2):
        run.save_and_retire(step)


def stale_stage(run: WorkloadRun) -> None:
    """A writer died halfway through a part; the next attempt saves the same step."""
    _claimed(run)
    run.save(1)
    run.acked.clear()
    run.opened(run.tree(run.half_written()))
    run.store.claim(1)
    run.save(1, 1)


def rejected(run: WorkloadRun) -> None:
    """The newest checkpoint is damaged; its step is saved again."""
    _claimed(run)
    run.save(1)
    run.save(2)
    tree = run.tree()
    name = step_name(2)
    folder, part = (
        (tree["checkpoints"], name + ".safetensors")
        if run.single
        else (tree["checkpoints"][name], MODEL)
    )
    folder[part] = folder[part][:-1] + bytes([folder[part][-1] ^ 1])
    run.acked.pop()  # lost by damage, not by power loss
    run.opened(tree)
    run.store.claim(1)
    run.save(2, 1)


def again(run: WorkloadRun) -> None:
    """A replay saves an existing step again, then the next one."""
    _claimed(run)
    run.save(1)
    run.opened(run.tree())
    run.store.claim(1)
    run.save(1, 1)
    run.save(2, 1)


def recovery(run: WorkloadRun) -> None:
    """A writer died during a save and left a stage, trash and a temporary file; a new attempt
    recovers, sweeps and saves.
    """
    _claimed(run)
    run.save_and_retire(1)
    run.save_and_retire(2)
    run.save(3)
    run.acked.pop()
    tree = run.tree(run.half_written())
    root = tree["checkpoints"]
    root[".tmp_latest.json.0badcafe"] = b"{"
    root[f"{TRASH_PREFIX}{step_name(0)}.0badcafe"] = {MODEL: b"old", RNG: b"old"}
    root[f"{STAGE_PREFIX}00000000.0.0badcafe"] = {MODEL: b"old", COMMIT: b""}
    run.opened(tree)
    run.recover(1)
    run.save(3, 1)


WORKLOADS: dict[str, Callable[[WorkloadRun], None]] = {
    each.__name__: each
    for each in (
        first,
        one,
        two,
        pointer,
        retention,
        overlapped,
        stale_stage,
        rejected,
        again,
        recovery,
    )
}


def played(workload: str, run: WorkloadRun) -> WorkloadRun:
    """Run the workload on `run` and return it."""
    # latest.json holds the time, and states must be reproducible
    with patch("ecrl_cli.checkpoint.store.store.wall", lambda: 0.0):
        try:
            WORKLOADS[workload](run)
        finally:
            run.store.close()
    return run


def _claimed(run: WorkloadRun) -> None:
    run.store.claim(0)
    run.opened(run.tree())


class PublishedStore(CheckpointStore):
    def save(self, image: CheckpointImage, attempt: int) -> Saved:
        work = CommitJob(
            self.fs, self.root, self.config.mode, self.crash_point, self._pool, image, attempt, None
        )
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
