"""Checkpointers of others, as their documentation has them used: what the studies hold ECRL's store
against. The code is that of the strategies.

Torch is imported with the first one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ecrl_cli.config.checkpointers import (
    DCP,
    TORCH_CHECKPOINTING,
    TORCH_SAVE,
    TORCH_SAVE_DURABLE,
    TORCHSNAPSHOT,
)

State = dict[str, Any]  # torch.Tensor by name

SAFETENSORS = "safetensors"
_KINDS = {
    kind.name: kind
    for kind in (TORCH_SAVE, TORCH_SAVE_DURABLE, DCP, TORCH_CHECKPOINTING, TORCHSNAPSHOT)
}
NAMES = (TORCH_SAVE.name, SAFETENSORS, DCP.name, TORCH_CHECKPOINTING.name, TORCHSNAPSHOT.name)


@dataclass(frozen=True)
class StockCheckpointer:
    """`save(state, path)` writes a file with this `suffix`, or a folder if that is empty;
    `load(like, path)` returns tensors shaped as those in `like`.
    """

    suffix: str
    save: Callable[[State, Path], None]
    load: Callable[[State, Path], State]


def lacking(name: str) -> str:
    """Why the checkpointer `name` cannot be used here; empty if it can."""
    return _KINDS[name].lacking() if name in _KINDS else ""


def checkpointer(name: str) -> StockCheckpointer:
    """The checkpointer `name`, one of NAMES or TORCH_SAVE_DURABLE's: in one process, without a
    process group.
    """
    if name == SAFETENSORS:
        from safetensors.torch import load_file, save_file

        return StockCheckpointer(".safetensors", save_file, lambda like, path: load_file(path))
    kind = _KINDS[name]
    made = kind.load()()
    if kind is TORCH_SAVE:
        import torch

        # to its place at once: a rename is what the power-loss study adds
        return StockCheckpointer(".pt", torch.save, made.load)
    return StockCheckpointer(Path(kind.state).suffix, made.save, made.load)
