"""The operations whose calls are failed one by one, and the in-memory store on which each
starts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from ecrl_cli.checkpoint.format.names import (
    LATEST,
    LATEST_OK,
    STAGE_PREFIX,
    TRASH_PREFIX,
    step_name,
)
from ecrl_cli.checkpoint.store.store import CheckpointStore, StoreConfig
from ecrl_cli.errors import StorageError
from ecrl_cli.storage.fs import Fs
from ecrl_cli.storage.memory_fs import ROOT, File, Link, MemoryFolder, ModelFs, Node, Tree
from ecrl_cli.storage.writing import TEMPORARY
from ecrl_cli.studies.frame.store_fixture import Payload, recovered_step, store_config

MOUNT = Path("/model")
CHECKPOINTS = MOUNT / "checkpoints"
ATTEMPT = 1  # the current attempt; the history is attempt 0's
OLD, NEWEST, NEXT, LATER = 10, 20, 30, 40  # steps
PAYLOAD = Payload(1, 3000, 1500)
_NONCE = re.compile(r"\.[0-9a-f]{8}\b")


@dataclass(frozen=True)
class StoreSetup:
    """The store's layout and write mode."""

    layout: str
    mode: str

    @property
    def config(self) -> StoreConfig:
        return store_config(self.mode)

    def name(self, step: int) -> str:
        return step_name(step) + (".safetensors" if self.layout == "single" else "")


@dataclass(frozen=True)
class Operation:
    """`act` returns the step that it acknowledged (`saves`) or found (`recovers`); else 0.

    `history`: steps acknowledged before. `stale`: leftovers of dead writers exist. `damaged`: the
    newest checkpoint is damaged. `modes`: whether the write mode matters.
    """

    name: str
    act: Callable[[CheckpointStore, StoreSetup], int]
    history: tuple[int, ...] = (OLD, NEWEST)
    saves: bool = False
    recovers: bool = False
    stale: bool = False
    damaged: bool = False
    modes: bool = True

    @property
    def intact(self) -> tuple[int, ...]:
        """Steps that must still be intact if `act` acknowledges nothing."""
        return self.history[:-1] if self.damaged else self.history[-2:]


def _save(store: CheckpointStore, cell: StoreSetup, step: int = NEXT) -> int:
    store.save(PAYLOAD.image(cell.layout, step), ATTEMPT)
    return step


def _update_pointers_and_retire(store: CheckpointStore, cell: StoreSetup) -> int:
    """Update the pointers, then retire, in a process without cached verdicts."""
    # as in the store: a pointer that cannot be written does not prevent retiring
    with suppress(StorageError):
        store.point(
            store.root / cell.name(NEXT), {"epoch": 0, "global_step": NEXT, "world_size": 1}
        )
    store.retire()
    return 0


def _claim(store: CheckpointStore, cell: StoreSetup) -> int:
    store.claim(ATTEMPT + 1)
    return 0


def _set_aside(store: CheckpointStore, cell: StoreSetup) -> int:
    store.quarantine(store.root / cell.name(NEWEST))
    return 0


OPERATIONS = {
    operation.name: operation
    for operation in (
        Operation("save", _save, saves=True),
        Operation("save again", partial(_save, step=NEWEST), saves=True),
        Operation("settle", _update_pointers_and_retire, history=(OLD, NEWEST, NEXT)),
        Operation("recover", lambda store, cell: recovered_step(store), recovers=True, modes=False),
        Operation("claim", _claim, stale=True, modes=False),
        Operation("set aside", _set_aside, damaged=True),
    )
}


@cache
def beginning(operation: str, cell: StoreSetup) -> Mapping[str, Tree]:
    """The disk before the operation: the history, the fencing token of ATTEMPT, and what the
    operation needs.
    """
    fs = ModelFs(MOUNT)
    store = CheckpointStore(CHECKPOINTS, cell.config, fs)
    store.claim(0)
    for step in OPERATIONS[operation].history:
        store.save(PAYLOAD.image(cell.layout, step), 0)
    store.claim(ATTEMPT)
    store.close()
    tree = tree_of(fs)
    folder = tree["checkpoints"]
    assert isinstance(folder, dict)
    if OPERATIONS[operation].stale:
        litter: dict[str, Tree] = {"model.safetensors": b"half"}
        folder |= {
            f"{STAGE_PREFIX}00000030.0.0a1b2c3d": litter,
            f"{TRASH_PREFIX}step_00000005.0a1b2c3d": dict(litter),
            f"{TEMPORARY}x": b"",
        }
    if OPERATIONS[operation].damaged:
        _damage(folder, cell)
    return tree


def _damage(folder: dict[str, Tree], cell: StoreSetup) -> None:
    place, name = folder, cell.name(NEWEST)
    if cell.layout == "group":
        inner = folder[name]
        assert isinstance(inner, dict)
        place, name = inner, "model.safetensors"
    data = place[name]
    assert isinstance(data, bytes)
    place[name] = data[:-1] + bytes([data[-1] ^ 1])


def tree_of(fs: ModelFs, number: int = ROOT) -> dict[str, Tree]:
    """The in-memory file system's content, as a tree to start from again."""
    node = fs.nodes[number]
    assert isinstance(node, MemoryFolder)
    return {name: _leaf(fs, fs.nodes[below], below) for name, below in node.names.items()}


def _leaf(fs: ModelFs, node: Node, number: int) -> Tree:
    if isinstance(node, MemoryFolder):
        return tree_of(fs, number)
    return node if isinstance(node, Link) else bytes(node.data)


def plain(text: str) -> str:
    """`text` without the nonces in its names, so that it is the same in every run."""
    return _NONCE.sub("", text)


def signature(fs: ModelFs, number: int = ROOT) -> object:
    """Equal for two disks that differ only in nonces and pointers, on which nothing depends."""
    node = fs.nodes[number]
    if isinstance(node, MemoryFolder):
        named = (
            (plain(name), signature(fs, below))
            for name, below in node.names.items()
            if name not in (LATEST, LATEST_OK)
        )
        return tuple(sorted(named, key=lambda pair: pair[0]))
    return bytes(node.data) if isinstance(node, File) else node


def store_on(fs: Fs, cell: StoreSetup) -> CheckpointStore:
    return CheckpointStore(CHECKPOINTS, cell.config, fs)
