"""Strategies whose checkpoints another checkpointer writes, in its own format: a folder per step
with ECRL's metadata beside its files.

The state is what a careful user would give it: parameters, buffers, optimizer state and every
rank's generators as tensors; cursor, schedule and the optimizer's settings are in the metadata. It
is handed over as it lies in the model: copying it, where that is needed, is the checkpointer's
business.
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Self

import torch
import torch.distributed as dist

from ecrl_cli.checkpoint.capture.tensor_sources import dtype_of, spec_of
from ecrl_cli.checkpoint.capture.train_state import RankStates, TrainState
from ecrl_cli.checkpoint.checkpointers.checkpointer import Checkpointer, State
from ecrl_cli.checkpoint.format.canonical_json import parse
from ecrl_cli.checkpoint.format.names import STEP_METADATA, TRASH_PREFIX, step_name
from ecrl_cli.checkpoint.format.train_document import NOWHERE, TrainPosition
from ecrl_cli.checkpoint.store import catalog
from ecrl_cli.checkpoint.store.catalog import TRANSIENT_ERRNOS, entry_of
from ecrl_cli.checkpoint.store.checkpoint_log import SaveTimes
from ecrl_cli.checkpoint.store.step_metadata import (
    StepMetadata,
    check_step,
    read_step_metadata,
    size_of,
    step_in,
)
from ecrl_cli.checkpoint.store.store import CheckpointStore, Saved
from ecrl_cli.checkpoint.strategies.strategy import StrategyContext, StrategyInputs
from ecrl_cli.config.checkpointers import CheckpointerKind
from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.errors import CheckpointConflict, ConfigError, EcrlError, StorageError, first_line
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.storage.files import write_whole
from ecrl_cli.storage.fs import PosixFs


class ForeignStrategy(ABC):
    """Common base of the strategies over third-party checkpointers: state, metadata, log,
    retention, and the remains of a failed save.
    """

    def __init__(
        self, context: StrategyContext, store: CheckpointStore, kind: CheckpointerKind
    ) -> None:
        self._context, self._store, self._kind = context, store, kind
        self._checkpointer: Checkpointer = kind.load()()

    @classmethod
    def make(cls, inputs: StrategyInputs) -> Self:
        kind = strategy_of(inputs.config).checkpointer
        assert kind is not None, "a strategy of this class names its checkpointer"
        return cls(inputs.context(), inputs.store(), kind)

    def prepare(self) -> None:
        self._context.train_state.gather(NOWHERE)
        if self._context.writes:
            self._store.claim(self._context.attempt)
        if self._takes_part:
            self._checkpointer.prepare()

    @abstractmethod
    def save(self, progress: TrainPosition) -> None: ...

    def snapshot(self, progress: TrainPosition) -> None:  # noqa: B027
        """No effect: this strategy keeps no snapshots in memory."""

    def confirm(self, global_step: int) -> None:
        if self._context.writes:
            self._context.log.confirm(global_step, curable=False)

    def close(self) -> None:
        self._checkpointer.close()
        self._store.close()

    @property
    def _takes_part(self) -> bool:
        return self._context.writes or self._kind.every_rank

    def _folder(self, step: int) -> Path:
        return self._store.root / step_name(step)

    def _state(self, gathered: RankStates) -> State:
        """The tensors by name, as they lie in the model and the optimizer."""
        return {
            source.name: source.find().detach() for source in self._context.train_state.sources()
        } | gathered.rng

    def _submitted(self, step: int) -> float:
        """Log the save as submitted, and as received, since nobody else writes; returns when the
        write began.
        """
        if self._context.writes:
            self._context.submitted(step, 0, inflight=1)
            self._context.log.write("received", step)
        return monotonic()

    def _opened(self, progress: TrainPosition, gathered: RankStates, state: State) -> str:
        """Rank 0 makes the step's folder with its metadata, while the others wait if they write
        too; returns its SHA-256, "" on other ranks.

        StorageError on every rank that waited if rank 0 could not: none of them may begin a save
        that the others do not take part in.
        """
        context, sha256, failure = self._context, "", None
        if context.writes:
            try:
                sha256 = self._open(progress, gathered, state)
            except EcrlError as error:
                failure = error
        if self._kind.every_rank and context.train_state.world_size > 1:
            done = context.train_state.peers.all_gather(torch.tensor([int(failure is None)]))[0]
            if not done and failure is None:
                raise StorageError("checkpoint", "rank 0 could not make the folder of the step")
        if failure is not None:
            raise failure
        return sha256

    def _open(self, progress: TrainPosition, gathered: RankStates, state: State) -> str:
        """StorageError, or CheckpointConflict if the step is there already."""
        context, folder = self._context, self._folder(progress.global_step)
        train = parse(context.train_state.train_document(progress, gathered.line_chain))
        tensors = tuple(spec_of(name, tensor) for name, tensor in state.items())
        metadata = StepMetadata(
            context.run_id, context.attempt, progress.global_step, self._kind.name, tensors, train
        )
        try:
            self._store.fs.mkdir(folder)
            write_whole(folder / STEP_METADATA, metadata.encoded(), durable=self._kind.durable)
        except StorageError as error:
            if error.errno != errno.EEXIST:
                raise
            raise CheckpointConflict(
                "checkpoints",
                f"{folder.name} is there already",
                "nothing was overwritten; verify the run",
            ) from error
        except OSError as error:
            raise StorageError.of("write", folder / STEP_METADATA, error) from error
        return metadata.sha256

    def _committed(self, step: int, sha256: str, times: SaveTimes) -> None:
        """Log the save as committed, then apply retention, whose errors do not make it a failed
        one.
        """
        folder = self._folder(step)
        saved = Saved(folder, sha256, size_of(folder), times.write_s, times.commit_s)
        self._context.log.committed(step, saved)
        with suppress(StorageError):
            self._context.log.retired(self._store.retire())

    def _failed(self, step: int, error: BaseException, write_s: float) -> None:
        """Log the save as failed and remove what is left of it. Raises what no save may hide:
        KeyboardInterrupt and SystemExit.
        """
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise error
        self._context.log.failed(step, described(self._kind, error), write_s)
        if isinstance(error, CheckpointConflict):
            return  # what lies there is another save's
        with suppress(StorageError):
            catalog.discard(
                self._store.fs,
                catalog.quarantine(self._store.fs, entry_of(self._folder(step)), TRASH_PREFIX),
            )


class ForeignBlockingStrategy(ForeignStrategy):
    """All ranks wait until the checkpointer has returned on each of them."""

    def save(self, progress: TrainPosition) -> None:
        context, step = self._context, progress.global_step
        context.clock.switch("sync")
        gathered = context.train_state.gather(progress)
        context.clock.mark()
        context.clock.switch("snapshot")
        state = self._state(gathered)
        context.clock.switch("write_wait")
        began, sha256, failure = self._submitted(step), "", None
        try:
            sha256 = self._opened(progress, gathered, state)
            if self._takes_part:
                self._checkpointer.save(state, self._folder(step) / self._kind.state)
        except BaseException as error:  # torch.distributed.checkpoint raises what is no Exception
            failure = error
        if context.writes:
            if failure is None:
                self._committed(step, sha256, SaveTimes(monotonic() - began))
            else:
                self._failed(step, failure, monotonic() - began)
            context.raise_if_save_failed()
        elif isinstance(failure, KeyboardInterrupt | SystemExit):
            raise failure
        context.clock.switch("sync")
        context.train_state.barrier()
        if context.writes:
            context.released(step, context.log.last_save)

    def flush(self) -> None:
        """No effect: nothing is ever in flight."""


class ForeignBackgroundStrategy(ForeignStrategy):
    """The checkpointer copies the state and returns; one save at a time is in flight. The next one
    waits for it on every rank (backpressure).
    """

    def __init__(
        self, context: StrategyContext, store: CheckpointStore, kind: CheckpointerKind
    ) -> None:
        super().__init__(context, store, kind)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpointer")
        self._pending: Future[None] | None = None

    def save(self, progress: TrainPosition) -> None:
        context, step = self._context, progress.global_step
        context.raise_if_save_failed()
        context.clock.switch("sync")
        gathered = context.train_state.gather(progress)
        context.clock.mark()
        context.clock.switch("backpressure")
        self._wait()
        context.clock.switch("snapshot")
        state = self._state(gathered)
        context.clock.switch("enqueue")
        began, sha256 = self._submitted(step), ""
        try:
            sha256 = self._opened(progress, gathered, state)
            begun = self._checkpointer.begin(state, self._folder(step) / self._kind.state)
        except BaseException as error:
            begun = Future()
            begun.set_exception(error)
        self._pending = self._pool.submit(self._finish, begun, step, sha256, began)
        context.clock.switch("sync")
        context.train_state.barrier()
        if context.writes:
            context.released(step)

    def flush(self) -> None:
        self._context.clock.switch("write_wait")
        self._wait()
        self._context.raise_if_save_failed()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        super().close()

    def _wait(self) -> None:
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def _finish(self, begun: Future[object], step: int, sha256: str, began: float) -> None:
        """In a thread: wait for the end of the save, and log it on rank 0. What another rank's save
        raised, rank 0's raises too.
        """
        failure = begun.exception()
        if self._context.writes:
            if failure is None:
                self._committed(step, sha256, SaveTimes(monotonic() - began))
            else:
                self._failed(step, failure, monotonic() - began)


def described(kind: CheckpointerKind, error: BaseException) -> EcrlError:
    """`error` of the checkpointer as an error of ECRL's, in one line; a StorageError if the file
    system raised it.
    """
    if isinstance(error, EcrlError):
        return error
    if isinstance(error, OSError):
        return StorageError.of(kind.name, error.filename, error)
    return EcrlError(kind.name, first_line(error), "read the output of rank 0")


class Unreadable(EcrlError):
    """The checkpointer could not load a checkpoint. Not incurable: the next attempt takes the one
    before.
    """

    code = "unreadable"


def restore_foreign(
    train_state: TrainState, kind: CheckpointerKind, path: Path, sha256: str
) -> TrainPosition:
    """Restore the step in the folder `path`, whose metadata hashes to `sha256`; returns this rank's
    position.

    Unreadable with what the checkpointer raised, unless that is no fault of the checkpoint: then
    EcrlError, and the next attempt tries it again. ConfigError if it holds the state of another
    model or optimizer.
    """
    try:
        metadata = read_step_metadata(PosixFs(), path)
        check_step(PosixFs(), path, step_in(path), metadata, kind)
        if metadata.sha256 != sha256:
            raise ValueError(f"is {metadata.sha256[:8]}, not {sha256[:8]}")
        checkpointer: Checkpointer = kind.load()()
        like = {
            spec.name: torch.empty(spec.shape, dtype=dtype_of(spec)) for spec in metadata.tensors
        }
        tensors = checkpointer.load(like, path / kind.state)
        if different := sorted(tensors.keys() ^ like.keys()):
            raise ValueError(
                f"{kind.name} loads other tensors than were saved (first difference:"
                f" {different[0][:80]})"
            )
        return train_state.become(tensors, metadata.train)
    except (ConfigError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # torch.distributed.checkpoint raises what is no Exception
        text = first_line(error)
        if _passing(error):
            raise EcrlError(
                "restore",
                f"{path.name}: {kind.name} did not load it ({text})",
                "the next attempt tries it again",
            ) from error
        raise Unreadable(
            "restore",
            f"{path.name}: {kind.name} cannot load it ({text})",
            "the next attempt takes the one before",
        ) from error


def _passing(error: BaseException) -> bool:
    """Whether `error` says nothing about the checkpoint: a peer died while all ranks were loading,
    or this process lacks descriptors or memory.

    torch.distributed.checkpoint raises one error for all ranks, with what each of them met.
    """
    # takes a second to import: only where something failed
    from torch.distributed.checkpoint.api import CheckpointException

    if isinstance(error, CheckpointException):
        return any(_passing(of_rank) for of_rank, _ in error.failures.values())
    if isinstance(error, OSError | StorageError):
        return isinstance(error, ConnectionError | TimeoutError) or error.errno in TRANSIENT_ERRNOS
    # gloo names its source file
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and "/gloo/" in str(error)
    )
