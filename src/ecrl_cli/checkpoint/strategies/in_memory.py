"""The in_memory strategy: overlapped checkpoints, and between them a snapshot every few steps into
memory that outlives the ranks.

A snapshot costs one collective and, on rank 0, one memory copy. No barrier is needed after the
copy: no other rank writes rank 0's state, and none can finish the next step without rank 0's
gradients, so the others may begin it meanwhile. The collective ensures that every rank has logged
the step before rank 0 copies it: there is never a complete snapshot of a step that some rank has
not logged.
"""

from __future__ import annotations

import os
from typing import Self

from ecrl_cli.checkpoint.capture.shared_memory import Memory, SnapshotPair, SnapshotRecord, room
from ecrl_cli.checkpoint.capture.staging_buffer import BufferLayout, CapturePlanner, StagingBuffer
from ecrl_cli.checkpoint.capture.train_state import RankStates
from ecrl_cli.checkpoint.format.train_document import NOWHERE, TrainPosition
from ecrl_cli.checkpoint.strategies.overlapped import OverlappedStrategy
from ecrl_cli.checkpoint.strategies.strategy import StrategyContext, StrategyInputs


class MappedSnapshot:
    """One mapped memory file: the staging buffer to copy into, and its record."""

    def __init__(self, memory: Memory, layout: BufferLayout, slot: StagingBuffer) -> None:
        self.layout, self.slot = layout, slot
        self.record = SnapshotRecord(memory.view, layout.plan.nbytes, layout.plan.parts)


class InMemoryStrategy(OverlappedStrategy):
    """Rank 0 copies into the two files of `snapshots` in turn, so that the newer snapshot stays
    complete.
    """

    def __init__(
        self, context: StrategyContext, max_inflight: int, snapshots: SnapshotPair
    ) -> None:
        super().__init__(context, max_inflight)
        self._snapshots = snapshots
        self._snapshotter = CapturePlanner(context.train_state, "")
        self._mapped: dict[int, MappedSnapshot] = {}
        self._next = 0

    @classmethod
    def make(cls, inputs: StrategyInputs) -> Self:
        assert inputs.snapshots is not None, (
            "a supervisor that was asked for snapshots answers with their memory"
        )
        return cls(inputs.context(), inputs.config.checkpoint.max_inflight, inputs.snapshots)

    def prepare(self) -> None:
        """Allocate the snapshot memory ahead of time: first touching a page costs seven times a
        copy into it.
        """
        super().prepare()
        context = self._context
        gathered = context.train_state.gather(NOWHERE)
        if context.writes:
            layout, train = (
                self._snapshotter.refresh(gathered),
                context.train_state.train_document(NOWHERE, gathered.line_chain),
            )
            free = self._snapshots.free()
            self._next = free[0]
            for number in free:
                self._map(number, layout, train)

    def snapshot(self, progress: TrainPosition) -> None:
        context = self._context
        context.clock.switch("sync")
        if context.writes and self._next in self._mapped:
            self._mapped[self._next].record.withdraw()
        gathered = context.train_state.gather(progress)
        if context.writes:
            context.clock.switch("snapshot")
            self._copy(progress, gathered)

    def close(self) -> None:
        for mapped in self._mapped.values():
            mapped.slot.close()
        self._mapped = {}
        super().close()

    def _copy(self, progress: TrainPosition, gathered: RankStates) -> None:
        layout, train = (
            self._snapshotter.refresh(gathered),
            self._context.train_state.train_document(progress, gathered.line_chain),
        )
        mapped = self._map(self._next, layout, train)
        mapped.record.withdraw()
        mapped.slot.capture(self._snapshotter.found)
        mapped.record.commit(progress.global_step, self._context.attempt, train)
        self._next = 1 - self._next

    def _map(self, number: int, layout: BufferLayout, train: bytes) -> MappedSnapshot:
        """File `number`, mapped; mapped anew if the state's structure has changed or train.json no
        longer fits.
        """
        mapped = self._mapped.get(number)
        if mapped is not None and mapped.layout == layout and mapped.record.fits(train):
            return mapped
        if mapped is not None:
            mapped.slot.close()
        self._snapshots.withdraw(number)
        nbytes = self._snapshots.make_room(
            number, room(layout.plan.nbytes, layout.plan.parts, train)
        )
        memory = Memory(os.dup(self._snapshots.fds[number]), nbytes)
        self._mapped[number] = MappedSnapshot(
            memory, layout, StagingBuffer(memory, layout, self._context.train_state.device)
        )
        return self._mapped[number]
