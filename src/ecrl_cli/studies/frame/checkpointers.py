"""Checkpointers of others, as their documentation has them used: what the studies hold ECRL's store against. Torch is imported with the first one."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

State = dict[str, Any]  # torch.Tensor by name

TORCH_CHECKPOINTING = "torch_checkpointing"
NAMES = ("torch.save", "safetensors", "torch.distributed.checkpoint", TORCH_CHECKPOINTING)


@dataclass(frozen=True)
class Checkpointer:
    """`save(state, path)` writes a file with this `suffix`, or a folder if that is empty; `load(like, path)` returns tensors shaped as those in
    `like`."""

    suffix: str
    save: Callable[[State, Path], None]
    load: Callable[[State, Path], State]


def lacking(name: str) -> str:
    """Why the checkpointer `name` cannot be used here; empty if it can."""
    if name != TORCH_CHECKPOINTING or importlib.util.find_spec(name) is not None:
        return ""
    return f"{name} is not installed (pip install 'ecrl[checkpointers]')"


def checkpointer(name: str) -> Checkpointer:
    """The checkpointer `name`, one of NAMES."""
    return {"torch.save": _torch_save, "safetensors": _safetensors, "torch.distributed.checkpoint": _distributed, TORCH_CHECKPOINTING: _meta}[name]()


def _torch_save() -> Checkpointer:
    import torch

    return Checkpointer(".pt", torch.save, lambda like, path: dict(torch.load(path, weights_only=True)))


def _safetensors() -> Checkpointer:
    from safetensors.torch import load_file, save_file

    return Checkpointer(".safetensors", save_file, lambda like, path: load_file(path))


def _distributed() -> Checkpointer:
    """One process, no process group."""
    from torch.distributed.checkpoint.state_dict_loader import load as load_distributed
    from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

    def save(state: State, path: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            save_distributed(state, checkpoint_id=path, no_dist=True)

    def load(like: State, path: Path) -> State:
        into = _zeros(like)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            load_distributed(into, checkpoint_id=path, no_dist=True)
        return into

    return Checkpointer("", save, load)


def _meta() -> Checkpointer:
    """meta-pytorch/torch_checkpointing, saving before it returns. Without direct I/O: at its default (0.1.1) the writer hands O_DIRECT writes of any
    length to the kernel, and ext4 and XFS refuse those that are no whole block."""
    from torch_checkpointing import CheckpointManager
    from torch_checkpointing.config import SyncCheckpointSaverConfig
    from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

    config = CheckpointManager.Config(save=SyncCheckpointSaverConfig(), storage_config=LocalFileSystemStorageConfig(use_direct_io=False))

    def save(state: State, path: Path) -> None:
        manager = CheckpointManager(config)
        try:
            manager.save(str(path), state)
        finally:
            manager.close()

    def load(like: State, path: Path) -> State:
        manager = CheckpointManager(config)
        try:
            return dict(manager.load(str(path), into=_zeros(like)))
        finally:
            manager.close()

    return Checkpointer("", save, load)


def _zeros(like: State) -> State:
    import torch

    return {name: torch.zeros_like(tensor) for name, tensor in like.items()}
