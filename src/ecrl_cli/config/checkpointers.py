"""Checkpointers of others: what is known of each before it is imported. Torch-free.

Strategies train with them, and studies hold ECRL's store against them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ecrl_cli.config.registry import import_attribute
from ecrl_cli.linux.prerequisites import lacking


@dataclass(frozen=True, kw_only=True)
class CheckpointerKind:
    """`name`: what its users call it. `implementation`: "module:class" of a `Checkpointer`
    (checkpoint/checkpointers/checkpointer.py), made without arguments.

    In the folder of a step lie ECRL's metadata (`checkpoint/store/step_metadata.py`) and `state`,
    the file or folder that the checkpointer writes;
    `committed`: what of it appears last, so that all of it has been written once it is there.
    `every_rank`: all ranks save, each its share; otherwise rank 0 alone. `background`: it returns
    before all is written.
    `durable`: what it has acknowledged survives a power loss, as its own code has it: files and all
    names above them are synced.
    `modules`: what must be installed beside torch. `loader`, `subject`: what the studies
    `corruption` and `power-loss` call it.
    """

    name: str
    implementation: str
    state: str
    committed: str
    every_rank: bool = False
    background: bool = False
    durable: bool = False
    modules: tuple[str, ...] = ()
    loader: str
    subject: str

    def lacking(self) -> str:
        """Why it cannot be used here; empty if it can."""
        return lacking(*self.modules)

    def load(self) -> Any:
        """Imports its code (and torch)."""
        return import_attribute("checkpoint", self.name, self.implementation)


_HERE = "ecrl_cli.checkpoint.checkpointers"
TORCH_SAVE = CheckpointerKind(
    name="torch.save",
    implementation=f"{_HERE}.torch_save:TorchSave",
    state="state.pt",
    committed="state.pt",
    loader="torch.load",
    subject="torch.save",
)
TORCH_SAVE_DURABLE = CheckpointerKind(
    name="torch.save, synced",
    implementation=f"{_HERE}.torch_save:SyncedTorchSave",
    state="state.pt",
    committed="state.pt",
    durable=True,
    loader="torch.load",
    subject="torch.save-synced",
)
DCP = CheckpointerKind(
    name="torch.distributed.checkpoint",
    implementation=f"{_HERE}.dcp:DistributedCheckpoint",
    state="state",
    committed="state/.metadata",
    every_rank=True,
    loader="torch.distributed.checkpoint",
    subject="dcp",
)
DCP_ASYNC = CheckpointerKind(
    name="torch.distributed.checkpoint async_save",
    implementation=f"{_HERE}.dcp:AsyncDistributedCheckpoint",
    state="state",
    committed="state/.metadata",
    every_rank=True,
    background=True,
    loader="torch.distributed.checkpoint",
    subject="dcp",
)
TORCH_CHECKPOINTING = CheckpointerKind(
    name="torch_checkpointing",
    implementation=f"{_HERE}.torch_checkpointing:TorchCheckpointing",
    state="state",
    committed="state",  # by one rename
    every_rank=True,
    background=True,
    modules=("torch_checkpointing",),
    loader="torch_checkpointing",
    subject="torch_checkpointing",
)
TORCHSNAPSHOT = CheckpointerKind(
    name="torchsnapshot",
    implementation=f"{_HERE}.torchsnapshot:TorchSnapshot",
    state="state",
    committed="state/.snapshot_metadata",
    every_rank=True,
    modules=("torchsnapshot", "aiofiles", "importlib_metadata", "nest_asyncio"),
    loader="torchsnapshot",
    subject="torchsnapshot",
)
