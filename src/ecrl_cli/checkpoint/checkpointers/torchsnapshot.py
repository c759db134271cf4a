"""torchsnapshot 0.1.0 (its last release): `Snapshot.take` of all ranks, what they have in common
shared among them.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist

from ecrl_cli.checkpoint.checkpointers.checkpointer import Blocking, State, zeros

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch warns of what it uses
    from torchsnapshot import Snapshot, StateDict

_KEY = "state"


class TorchSnapshot(Blocking):
    """Every rank gives the whole state: what is declared replicated must be there, and alike, on
    each.
    """

    def save(self, state: State, path: Path) -> None:
        with contained():
            Snapshot.take(str(path), {_KEY: StateDict(**writable(alike(state)))}, replicated=["**"])

    def load(self, like: State, path: Path) -> State:
        made = zeros(like)
        into = StateDict(**writable(made))
        with contained():
            Snapshot(str(path)).restore({_KEY: into})
        return made | {name: tensor.view(made[name].dtype) for name, tensor in dict(into).items()}


def writable(state: State) -> State:
    """`state` without what version 0.1.0 cannot write with this torch: tensors without elements are
    left out, bfloat16 goes as the integers of its bits.
    """
    full = {name: tensor for name, tensor in state.items() if tensor.numel()}
    return {
        name: tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
        for name, tensor in full.items()
    }


def alike(state: State) -> State:
    """`state` with rank 0's buffers: between two steps each rank has its own running statistics of
    BatchNorm.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return state
    buffers = {
        name: tensor.clone() for name, tensor in state.items() if name.startswith("buffers.")
    }
    for tensor in buffers.values():
        dist.broadcast(tensor, src=0)
    return state | buffers


@contextmanager
def contained() -> Iterator[None]:
    """Closes the event loops that are made inside and left open (version 0.1.0 leaves some at each
    call, each with three descriptors), and hides what torch warns of.
    """
    new, made = asyncio.new_event_loop, list[asyncio.AbstractEventLoop]()

    def kept() -> asyncio.AbstractEventLoop:
        made.append(new())
        return made[-1]

    try:
        with patch.object(asyncio, "new_event_loop", kept), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for loop in made:
            loop.close()
