"""torch.distributed.checkpoint of all ranks: `save`, and `async_save` with its executor in a thread
(its default).
"""

from __future__ import annotations

import warnings
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load as load_distributed
from torch.distributed.checkpoint.state_dict_saver import async_save as save_beside
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

from ecrl_cli.checkpoint.checkpointers.checkpointer import Begun, Blocking, State, zeros


def own(state: State) -> State:
    """The part of the state that this rank saves: everything that all ranks hold alike, and rank
    0's buffers.

    Between two steps each rank has its own running statistics of BatchNorm, and the next step
    begins with rank 0's. Of a tensor that several ranks give, any may be written.
    """
    if not dist.is_initialized() or dist.get_rank() == 0:
        return state
    return {name: tensor for name, tensor in state.items() if not name.startswith("buffers.")}


class DistributedCheckpoint(Blocking):
    """Each rank writes a share of what all ranks have. Without a process group, this process
    alone.
    """

    def save(self, state: State, path: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is no process group is known
            save_distributed(own(state), checkpoint_id=path, no_dist=not dist.is_initialized())

    def load(self, like: State, path: Path) -> State:
        into = zeros(like)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            load_distributed(into, checkpoint_id=path, no_dist=not dist.is_initialized())
        return into


class AsyncDistributedCheckpoint(DistributedCheckpoint):
    """`async_save` copies the state, then a thread writes. The thread has a process group of its
    own: its collectives run beside the training's, and on one group the order of both would differ
    from rank to rank.
    """

    def __init__(self) -> None:
        self._group: Any = None

    def prepare(self) -> None:
        if dist.is_initialized() and self._group is None:
            self._group = dist.new_group(backend="gloo")

    def begin(self, state: State, path: Path) -> Begun:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            begun: Any = save_beside(
                own(state),
                checkpoint_id=path,
                process_group=self._group,
                no_dist=not dist.is_initialized(),
            )
        assert isinstance(begun, Future), (
            "without a stager of ours the state has been copied when it returns"
        )
        return begun
