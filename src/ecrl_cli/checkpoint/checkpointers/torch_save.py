"""`torch.save` of rank 0, as training scripts write it: to a temporary name, then renamed; with or
without a sync.
"""

from __future__ import annotations

from pathlib import Path

import torch

from ecrl_cli.checkpoint.checkpointers.checkpointer import Blocking, State
from ecrl_cli.storage import durable


class TorchSave(Blocking):
    """Nothing is synced: a power loss may take what was saved, or leave a file without its
    bytes.
    """

    synced = False

    def save(self, state: State, path: Path) -> None:
        temporary = path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            torch.save(state, file)
            if self.synced:
                file.flush()
                durable.sync(file.fileno())
        durable.rename_over(temporary, path)
        if self.synced:
            durable.sync_directory(path.parent)
            durable.sync_directory(path.parent.parent)

    def load(self, like: State, path: Path) -> State:
        return dict(torch.load(path, weights_only=True, map_location="cpu"))


class SyncedTorchSave(TorchSave):
    """The file is synced before the rename, and the names of file and folder after it."""

    synced = True
