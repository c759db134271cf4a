"""The interface of a checkpointer of others, as its documentation has it used. Its description:
config/checkpointers.py.
"""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

import torch

State = dict[str, torch.Tensor]
Begun = Future[Any]


class Checkpointer(Protocol):
    """One rank's, in one attempt. With a process group of several ranks, each call is collective
    where the description says `every_rank`.

    `save` raises what the checkpointer raises, which need not be an Exception
    (torch.distributed.checkpoint: BaseException).
    """

    def prepare(self) -> None:
        """Make what later saves need: process groups, processes. Collective."""

    def save(self, state: State, path: Path) -> None:
        """Write `state` under `path`, a file or folder that does not exist yet; returns once all
        ranks have written.
        """

    def begin(self, state: State, path: Path) -> Begun:
        """Like `save`, but returns once `state` may change again: the result is there when
        everything has been written.
        """

    def load(self, like: State, path: Path) -> State:
        """The tensors under `path`, on the CPU, with the names, types and shapes of those in
        `like`.
        """

    def close(self) -> None:
        """Release what `prepare` made, without waiting for a save that goes on."""


class Blocking:
    """A checkpointer that needs no preparation and returns when all has been written."""

    def prepare(self) -> None: ...

    def save(self, state: State, path: Path) -> None:
        raise NotImplementedError

    def begin(self, state: State, path: Path) -> Begun:
        raise NotImplementedError(f"{type(self).__name__} writes before it returns")

    def close(self) -> None: ...


def zeros(like: State) -> State:
    return {name: torch.zeros(tensor.shape, dtype=tensor.dtype) for name, tensor in like.items()}
