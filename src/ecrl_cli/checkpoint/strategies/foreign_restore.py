"""Restores a rank from a step that another checkpointer wrote."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

from ecrl_cli.checkpoint.capture.tensor_sources import dtype_of
from ecrl_cli.checkpoint.capture.train_state import TrainState
from ecrl_cli.checkpoint.checkpointers.checkpointer import Checkpointer
from ecrl_cli.checkpoint.format.train_document import TrainPosition
from ecrl_cli.checkpoint.store.catalog import PASSING
from ecrl_cli.checkpoint.store.step_page import check_step, read_page, step_in
from ecrl_cli.config.checkpointers import CheckpointerKind
from ecrl_cli.errors import ConfigError, EcrlError, StorageError, first_line
from ecrl_cli.storage.fs import PosixFs


class Unreadable(EcrlError):
    """The checkpointer could not load a checkpoint. Not incurable: the next attempt takes the one before."""

    code = "unreadable"


def restore_foreign(train_state: TrainState, kind: CheckpointerKind, path: Path, sha256: str) -> TrainPosition:
    """Restore the step in the folder `path`, whose page hashes to `sha256`; returns this rank's position.

    Unreadable with what the checkpointer raised, unless that is no fault of the checkpoint: then EcrlError, and the next attempt tries it again.
    ConfigError if it holds the state of another model or optimizer.
    """
    try:
        page = read_page(PosixFs(), path)
        check_step(PosixFs(), path, step_in(path), page, kind)
        if page.sha256 != sha256:
            raise ValueError(f"is {page.sha256[:8]}, not {sha256[:8]}")
        checkpointer: Checkpointer = kind.load()()
        like = {spec.name: torch.empty(spec.shape, dtype=dtype_of(spec)) for spec in page.tensors}
        tensors = checkpointer.load(like, path / kind.state)
        if different := sorted(tensors.keys() ^ like.keys()):
            raise ValueError(f"{kind.name} loads other tensors than were saved (first difference: {different[0][:80]})")
        return train_state.become(tensors, page.train)
    except (ConfigError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # torch.distributed.checkpoint raises what is no Exception
        text = first_line(error)
        if _passing(error):
            raise EcrlError("restore", f"{path.name}: {kind.name} did not load it ({text})", "the next attempt tries it again") from error
        raise Unreadable("restore", f"{path.name}: {kind.name} cannot load it ({text})", "the next attempt takes the one before") from error


def _passing(error: BaseException) -> bool:
    """Whether `error` says nothing about the checkpoint: a peer died while all ranks were loading, or this process lacks descriptors or memory."""
    if isinstance(error, OSError | StorageError):
        return isinstance(error, ConnectionError | TimeoutError) or error.errno in PASSING
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "/gloo/" in str(error))  # gloo names its source file
