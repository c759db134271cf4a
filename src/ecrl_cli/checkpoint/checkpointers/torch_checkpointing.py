"""meta-pytorch/torch_checkpointing: its manager, saving before it returns or, as it does by
default, from a process of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch_checkpointing import CheckpointManager
from torch_checkpointing.checkpoint_layout import LayoutInfo, TorchSerialization
from torch_checkpointing.config import AsyncCheckpointSaverConfig, SyncCheckpointSaverConfig
from torch_checkpointing.schema import ItemSpec
from torch_checkpointing.staging import CheckpointStagerConfig
from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

from ecrl_cli.checkpoint.checkpointers.checkpointer import Begun, Blocking, State, zeros

# Without direct I/O: at its default (0.1.1) the writer hands O_DIRECT writes of any length to the
# kernel, and ext4 and XFS refuse those that are no whole block.
STORAGE = LocalFileSystemStorageConfig(use_direct_io=False)
_ITEM = "state"


class TorchCheckpointing(Blocking):
    """Rank 0 writes one file for all ranks, whose state is the same; the others take part in its
    barrier and load the same file.

    A folder is installed by one rename, and nothing is synced.
    """

    def __init__(self) -> None:
        self._manager: CheckpointManager | None = None
        self._begun: Begun | None = None

    def prepare(self) -> None:
        """Make the manager, which starts its process (and the process imports torch) beside the
        training.
        """
        if self._manager is None:
            # otherwise each optimizer step would have to wait for its lock
            staging = CheckpointStagerConfig(use_async_staging=False)
            self._manager = _manager(AsyncCheckpointSaverConfig(staging_config=staging))

    def save(self, state: State, path: Path) -> None:
        manager = _manager(SyncCheckpointSaverConfig())
        try:
            manager.save(str(path), _given(state))
        finally:
            manager.close()

    def begin(self, state: State, path: Path) -> Begun:
        self.prepare()
        assert self._manager is not None
        begun = self._manager.save(str(path), _given(state))
        assert begun is not None, "this manager saves asynchronously"
        self._begun = begun
        return self._begun

    def load(self, like: State, path: Path) -> State:
        manager = _manager(SyncCheckpointSaverConfig())
        try:
            return dict(manager.load(str(path), into={_ITEM: zeros(like)}, strict=True)[_ITEM])
        finally:
            manager.close()

    def close(self) -> None:
        """End its process, unless it still writes: then it ends with this one."""
        if self._manager is not None and (self._begun is None or self._begun.done()):
            self._manager.close()
        self._manager = None


def _given(state: State) -> dict[str, State]:
    """The part of the state that this rank saves: all of it on rank 0, nothing on the others."""
    return {_ITEM: state} if not dist.is_initialized() or dist.get_rank() == 0 else {}


def _manager(save: Any) -> CheckpointManager:
    item = ItemSpec(layout=LayoutInfo("state.pt", TorchSerialization()), required=False)
    return CheckpointManager(
        CheckpointManager.Config(items={_ITEM: item}, save=save, storage_config=STORAGE)
    )
