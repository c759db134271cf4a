"""Restores a rank's state from what the supervisor chose: a snapshot in memory, a checkpoint of the
store, or one of another checkpointer.
"""

from __future__ import annotations

from dataclasses import replace

from ecrl_cli.checkpoint.capture.loading import load_snapshot
from ecrl_cli.checkpoint.capture.shared_memory import SnapshotPair
from ecrl_cli.checkpoint.capture.train_state import TrainState
from ecrl_cli.checkpoint.format.train_document import NOWHERE, TrainPosition
from ecrl_cli.checkpoint.strategies.foreign import Unreadable, restore_foreign
from ecrl_cli.config.codec import encode
from ecrl_cli.config.schema import RunConfig
from ecrl_cli.config.strategies import strategy_of
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import AttemptSpec
from ecrl_cli.records.state_digests import RestoredState, Unloadable
from ecrl_cli.records.survivor_records import SNAPSHOT
from ecrl_cli.storage.files import write_json


def restore(
    train_state: TrainState,
    config: RunConfig,
    layout: RunLayout,
    order: AttemptSpec,
    snapshots: SnapshotPair | None,
) -> TrainPosition:
    """Restore `train_state` if there is something to resume from; returns this rank's position.

    Unreadable where another checkpointer cannot load what it wrote. That is put on record first:
    the next attempt does not choose it again.
    """
    if order.memory == SNAPSHOT:
        assert snapshots is not None
        loaded = load_snapshot(
            snapshots, order.resume_step, order.snapshot_sha256, config.checkpoint.digest
        )
        return train_state.become(loaded.tensors, loaded.train)
    source = order.resume_from
    if source is None:
        return NOWHERE
    path, sha256 = layout.root / source.path, source.commit_sha256
    kind = strategy_of(config).checkpointer
    if kind is None:
        at = train_state.restore(path, sha256, config.checkpoint.finite)
        if (source.path, sha256) != config.begins_from[:2]:
            return at
        return replace(at, line_chain="")  # the lines before are the other run's
    try:
        return restore_foreign(train_state, kind, path, sha256)
    except Unreadable as error:
        found = Unloadable(
            order.attempt, train_state.rank, source.path, sha256, layout.relative_text(error.fact)
        )
        # the next launch reads it
        write_json(layout.attempt(order.attempt).unloadable(train_state.rank), encode(found))
        raise


def record_restored(
    train_state: TrainState, at: TrainPosition, layout: RunLayout, order: AttemptSpec
) -> None:
    """Record digests of the restored state, if this rank resumed: verify compares them with what
    was saved.
    """
    if not order.restored_digests or not (order.resume_from or order.memory):
        return
    found = train_state.rank_digests(at)
    restored = RestoredState(order.attempt, at.global_step, found.rank, found.state)
    write_json(
        layout.attempt(order.attempt).restored(train_state.rank), encode(restored), durable=False
    )
