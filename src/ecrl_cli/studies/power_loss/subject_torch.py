"""Common alternatives on the same rig: torch.save as usually written, and torch.distributed.checkpoint; each with its own reader."""

from __future__ import annotations

import logging
import random
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch.distributed.checkpoint.state_dict_loader import load as load_distributed
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

from ecrl_cli.errors import EcrlError
from ecrl_cli.storage.fs import PosixFs
from ecrl_cli.studies.frame.store_fixture import Payload
from ecrl_cli.studies.power_loss.subject_store import Acknowledge, Recovered

State = dict[str, torch.Tensor]


class TorchSave:
    """`durable`: temporary file, fsync, rename; the folder is not synced, as is usual."""

    def __init__(self, folder: Path, payload: Payload, *, durable: bool) -> None:
        self._folder, self._payload, self._durable, self._fs = folder, payload, durable, PosixFs()

    def begin(self) -> None:
        """Nothing to prepare."""

    def save(self, step: int, acknowledge: Acknowledge) -> None:
        path = self._folder / f"step_{step:08d}.pt"
        if self._durable:
            self._save_durably(step, path)
        else:
            torch.save(_state(self._payload, step), path)
        acknowledge(step)

    def recover(self, *, go_on: bool) -> Recovered:
        return _newest(self._folder, ".pt", self._payload, lambda path, _: torch.load(path, weights_only=True))

    def _save_durably(self, step: int, path: Path) -> None:
        temporary = path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            torch.save(_state(self._payload, step), file)
            file.flush()
            self._fs.fsync(file.fileno())
        self._fs.rename(temporary, path, replace=True)


class DistributedCheckpoint:
    """One process, no process group: a folder per step."""

    def __init__(self, folder: Path, payload: Payload) -> None:
        self._folder, self._payload = folder, payload

    def begin(self) -> None:
        """Nothing to prepare."""

    def save(self, step: int, acknowledge: Acknowledge) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            save_distributed(_state(self._payload, step), checkpoint_id=self._folder / f"step_{step:08d}")
        acknowledge(step)

    def recover(self, *, go_on: bool) -> Recovered:
        return _newest(self._folder, "", self._payload, _load_distributed)


def prepare(folder: Path) -> None:
    """Runs before forking: imports what is imported on first use, and sets one thread, because a thread pool does not survive a fork."""
    torch.set_num_threads(1)
    logging.disable()  # the reader prints a traceback for each partial checkpoint
    warm = DistributedCheckpoint(folder, Payload(0, 64, 64))
    warm.save(1, lambda _: None)
    if warm.recover(go_on=False).step != 1:
        raise EcrlError("power-loss", "torch.distributed.checkpoint cannot read what it wrote", "see whether torch is whole")


def _load_distributed(path: Path, payload: Payload) -> State:
    state = {name: torch.zeros_like(tensor) for name, tensor in _state(payload, 0).items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load_distributed(state, checkpoint_id=path)
    return state


def _newest(folder: Path, suffix: str, payload: Payload, load: Callable[[Path, Payload], State]) -> Recovered:
    """The newest checkpoint that loads; those that do not load are skipped."""
    refused = 0
    for path in sorted(folder.glob(f"step_*{suffix}"), reverse=True):
        try:
            state = load(path, payload)
        except BaseException:  # CheckpointException does not derive from Exception
            refused += 1
            continue
        step = int(path.stem.partition("_")[2])
        return Recovered(step, _same(state, _state(payload, step)), refused)
    return Recovered(None, True, refused)


def _state(payload: Payload, step: int) -> State:
    generator = random.Random(f"{payload.seed}/{step}")
    sizes = {"parameters": payload.model_bytes, "optimizer": payload.optimizer_bytes}
    state = {name: torch.frombuffer(bytearray(generator.randbytes(size)), dtype=torch.uint8) for name, size in sizes.items()}
    return state | {"step": torch.tensor(step)}


def _same(found: State, expected: State) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)
