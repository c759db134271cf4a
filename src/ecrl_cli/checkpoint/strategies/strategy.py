"""The interface of a checkpoint strategy, its inputs, and the context that strategies share. All
ranks call it; only rank 0 writes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from ecrl_cli.checkpoint.capture.shared_memory import SnapshotPair
from ecrl_cli.checkpoint.capture.staging_buffer import CapturePlanner, StagingBuffer
from ecrl_cli.checkpoint.capture.train_state import RankStates, TrainState
from ecrl_cli.checkpoint.format.image import CheckpointMeta, PartPlace
from ecrl_cli.checkpoint.format.names import suffix_of
from ecrl_cli.checkpoint.format.train_document import TrainPosition
from ecrl_cli.checkpoint.store.checkpoint_log import CheckpointLog, SaveTimes
from ecrl_cli.checkpoint.store.store import CheckpointStore, StoreConfig
from ecrl_cli.checkpoint.strategies.deferral import Deferral
from ecrl_cli.config.identity import run_id
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.errors import StorageError
from ecrl_cli.records.events import STALL_PARTS
from ecrl_cli.records.journal import Journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.span_clock import SpanClock


def _nothing() -> None:
    """The heartbeat of a rank without a watchdog."""


def _to_stderr(text: str) -> None:
    sys.stderr.write(f"{text}\n")


class Strategy(Protocol):
    """Used by the train loop in this order: prepare once, snapshot and save at each trigger, flush
    before a planned end, close.

    Its class has `make(inputs: StrategyInputs)`, which makes the strategy that a `StrategyKind`
    (config/strategies.py) names, for one rank.

    Each call is collective: every rank makes it at the same step. Its time is recorded in the span
    clock's categories.
    """

    def prepare(self) -> None:
        """Plan and allocate the memory of a snapshot; called after the first step of an attempt,
        when the optimizer has its state.
        """

    def save(self, progress: TrainPosition) -> None:
        """Barrier, capture, hand over or write, barrier. A failed write is logged; it raises only
        with checkpoint.on_error=stop.
        """

    def snapshot(self, progress: TrainPosition) -> None:
        """Copy the state into memory that survives the ranks, but not their supervisor; no effect
        except with in_memory.
        """

    def flush(self) -> None:
        """Return when every submitted checkpoint is committed or failed."""

    def confirm(self, global_step: int) -> None:
        """After flush: raise if `global_step` was submitted in this attempt and is not committed.
        StorageError if storage failed; EcrlError, which a restart may cure, if the writer died.
        Only rank 0 raises, which ends the attempt.
        """

    def close(self) -> None:
        """Release memory and connections, without waiting for checkpoints in flight."""


@dataclass(frozen=True)
class StrategyInputs:
    """Inputs of a strategy for one rank in one attempt. `own_store`: the store that the rank itself
    writes to; None: a plain one. `snapshots`: the supervisor's memory files, if the strategy keeps
    snapshots. `beat`: says that the rank is alive while it waits for the writer. `tell`: prints one
    line for the user.
    """

    config: RunConfig
    train_state: TrainState
    layout: RunLayout
    attempt: int
    clock: SpanClock
    own_store: CheckpointStore | None = None
    snapshots: SnapshotPair | None = None
    beat: Callable[[], None] = _nothing
    tell: Callable[[str], None] = _to_stderr

    def context(self) -> StrategyContext:
        """The strategy's context; opens the attempt's checkpoint log."""
        log = CheckpointLog(
            Journal(self.layout.attempt(self.attempt).checkpoints), self.layout, self.attempt
        )
        planner = CapturePlanner(self.train_state, suffix_of(self.config.checkpoint))
        checkpoint, identity = self.config.checkpoint, run_id(self.config)
        defers = checkpoint.capture == "deferred"
        told = (checkpoint.on_error, defers, self.beat, self.tell)
        return StrategyContext(
            self.train_state, planner, self.layout, identity, self.attempt, self.clock, log, *told
        )

    def store(self) -> CheckpointStore:
        """The run's store, for a strategy that writes in the rank itself."""
        return self.own_store or CheckpointStore(
            self.layout.checkpoints, StoreConfig.of(self.config, run_id(self.config))
        )


@dataclass(frozen=True)
class StrategyContext:
    """One rank in one attempt: its state, its span clock, and the checkpoint log (which only rank 0
    writes).
    """

    train_state: TrainState
    snapshotter: CapturePlanner
    layout: RunLayout
    run_id: str
    attempt: int
    clock: SpanClock
    log: CheckpointLog
    on_error: str = "continue"
    defers: bool = False
    beat: Callable[[], None] = _nothing
    tell: Callable[[str], None] = _to_stderr

    def deferral(self) -> Deferral:
        """For a strategy whose captures may be deferred (checkpoint.capture)."""
        if self.train_state.device.type == "cuda":
            # a run on the CPU does without it
            from ecrl_cli.checkpoint.strategies.deferral_gpu import GpuDeferral

            return GpuDeferral(
                self.train_state.optimizer, self.clock, self.log, self.beat, self.tell
            )
        return Deferral(self.train_state.optimizer, self.clock, self.log, self.beat, self.tell)

    @property
    def writes(self) -> bool:
        return self.train_state.rank == 0

    def stamp(self, progress: TrainPosition) -> CheckpointMeta:
        return CheckpointMeta(
            self.run_id,
            progress.global_step,
            progress.epoch,
            progress.cursor_step,
            progress.seed,
            self.train_state.world_size,
        )

    def capture(
        self,
        slot: StagingBuffer,
        progress: TrainPosition,
        gathered: RankStates,
        later: Collection[str] = (),
    ) -> tuple[tuple[PartPlace, ...], bytes]:
        """Copy the tensors that were just looked up into `slot`, but for those named in `later`;
        returns the places of the files and the text of train.json.
        """
        self.clock.switch("snapshot")
        slot.capture(
            {name: tensor for name, tensor in self.snapshotter.found.items() if name not in later}
        )
        self.snapshotter.copied_s = slot.copied_s
        train = self.train_state.train_document(progress, gathered.line_chain)
        serialized = 0
        if slot.layout.suffix == ".pt":
            self.clock.switch("serialize")
            serialized = slot.serialize(train)
        return slot.layout.parts(progress.global_step, serialized), train

    def raise_if_save_failed(self) -> None:
        """StorageError if a save of this attempt has failed and `checkpoint.on_error` is stop: a
        restart would not help.
        """
        if self.log.failure and self.on_error == "stop":
            remedy = (
                "checkpoint.on_error=stop: once the cause is gone, the same command resumes the run"
            )
            raise StorageError("checkpoint", self.log.failure, remedy)

    def released(self, global_step: int, save: SaveTimes | None = None) -> None:
        """Log the stall since the clock was marked, each second in exactly one part. `save`: the
        times of the save within it.
        """
        stall_s, spent = self.clock.lap()
        parts = {
            name: spent.get(category, 0.0)
            for name, category in STALL_PARTS.items()
            if category != "write_wait"
        }
        if save:
            parts |= {"write": save.write_s, "hash": save.hash_s, "commit": save.commit_s}
            parts["settle"] = (
                spent.get("write_wait", 0.0) - save.write_s - save.hash_s - save.commit_s
            )
        parts = {name: seconds for name, seconds in parts.items() if seconds}
        self.log.write(
            "released",
            global_step,
            enqueue_s=parts.get("enqueue", 0.0),
            stall_s=stall_s,
            stall_parts=parts,
        )

    def submitted(
        self,
        global_step: int,
        nbytes: int,
        inflight: int,
        deferred_bytes: int = 0,
        reason: str = "",
    ) -> None:
        """Log the checkpoint as submitted, before anything is handed over. `deferred_bytes`: left
        to the writer to copy; `reason`: why none is.
        """
        spent = self.clock.duration
        seconds = {f"{name}_s": spent(name) for name in ("snapshot", "serialize", "backpressure")}
        self.log.write(
            "submitted",
            global_step,
            bytes=nbytes,
            inflight=inflight,
            deferred_bytes=deferred_bytes,
            reason=reason or None,
            **seconds,
            copy_s=self.snapshotter.copied_s,
        )


def make_strategy(inputs: StrategyInputs) -> Strategy:
    """The strategy named by `inputs.config.checkpoint`, for this rank in this attempt."""
    made: Strategy = strategy_of(inputs.config).load().make(inputs)
    return made
