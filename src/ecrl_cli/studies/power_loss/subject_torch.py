"""Common alternatives on the same rig: torch.save as usually written, and two that save a folder;
each with its own reader.
"""

from __future__ import annotations

import logging
import random
from pathlib import Path

import torch

from ecrl_cli.config.checkpointers import DCP, TORCH_SAVE, TORCH_SAVE_DURABLE
from ecrl_cli.errors import EcrlError
from ecrl_cli.storage.fs import PosixFs
from ecrl_cli.studies.frame.checkpointers import StockCheckpointer, checkpointer
from ecrl_cli.studies.frame.store_fixture import Payload
from ecrl_cli.studies.power_loss.subject_store import Acknowledge, Recovered

State = dict[str, torch.Tensor]


class TorchSubject:
    """A file or folder per step. `durable`: the file is written under a temporary name, synced and
    renamed; the folder is not synced, as is usual.
    """

    def __init__(
        self,
        folder: Path,
        payload: Payload,
        checkpointer: StockCheckpointer,
        *,
        durable: bool = False,
    ) -> None:
        self._folder, self._payload, self._checkpointer, self._durable, self._fs = (
            folder,
            payload,
            checkpointer,
            durable,
            PosixFs(),
        )

    def begin(self) -> None:
        """Nothing to prepare."""

    def save(self, step: int, acknowledge: Acknowledge) -> None:
        path, state = (
            self._folder / f"step_{step:08d}{self._checkpointer.suffix}",
            _state(self._payload, step),
        )
        if self._durable:
            temporary = path.with_suffix(".tmp")
            with temporary.open("wb") as file:
                torch.save(state, file)
                file.flush()
                self._fs.fsync(file.fileno())
            self._fs.rename(temporary, path, replace=True)
        else:
            self._checkpointer.save(state, path)
        acknowledge(step)

    def recover(self, *, go_on: bool) -> Recovered:
        """The newest checkpoint that loads; those that do not load are skipped."""
        refused = 0
        for path in sorted(self._folder.glob(f"step_*{self._checkpointer.suffix}"), reverse=True):
            step = int(path.stem.partition("_")[2])
            expected = _state(self._payload, step)
            try:
                state = self._checkpointer.load(expected, path)
            except BaseException:  # CheckpointException does not derive from Exception
                refused += 1
                continue
            same = state.keys() == expected.keys() and all(
                torch.equal(state[name], expected[name]) for name in expected
            )
            return Recovered(step, same, refused)
        return Recovered(None, True, refused)


def subject(name: str, folder: Path, payload: Payload) -> TorchSubject:
    """The subject `name`, one of `real_process.TORCH_SUBJECTS`."""
    known = {
        "torch.save-durable": TORCH_SAVE.name,
        TORCH_SAVE_DURABLE.subject: TORCH_SAVE_DURABLE.name,
        DCP.subject: DCP.name,
    }
    return TorchSubject(
        folder, payload, checkpointer(known.get(name, name)), durable=name == "torch.save-durable"
    )


def prepare(folder: Path, name: str) -> None:
    """Runs before forking: imports what is imported on first use, and sets one thread, because a
    thread pool does not survive a fork.
    """
    torch.set_num_threads(1)
    logging.disable()  # readers print a traceback for each partial checkpoint
    folder.mkdir(exist_ok=True)
    warm = subject(name, folder, Payload(0, 64, 64))
    warm.save(1, lambda _: None)
    if warm.recover(go_on=False).step != 1:
        raise EcrlError(
            "power-loss", f"{name} cannot read what it wrote", "see whether it is whole"
        )


def _state(payload: Payload, step: int) -> State:
    generator = random.Random(f"{payload.seed}/{step}")
    sizes = {"parameters": payload.model_bytes, "optimizer": payload.optimizer_bytes}
    state = {
        name: torch.frombuffer(bytearray(generator.randbytes(size)), dtype=torch.uint8)
        for name, size in sizes.items()
    }
    return state | {"step": torch.tensor(step)}
