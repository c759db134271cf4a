"""From configuration to strategy: the one place that knows them all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ecrl_cli.checkpoint.capture.memory_snapshots import SnapshotPair
from ecrl_cli.checkpoint.capture.staging_buffer import CapturePlanner
from ecrl_cli.checkpoint.capture.train_state import TrainState
from ecrl_cli.checkpoint.store.checkpoint_log import CheckpointLog
from ecrl_cli.checkpoint.store.store import CheckpointStore, StoreConfig
from ecrl_cli.checkpoint.strategies.blocking import BlockingStrategy
from ecrl_cli.checkpoint.strategies.context import StrategyContext
from ecrl_cli.checkpoint.strategies.in_memory import InMemoryStrategy
from ecrl_cli.checkpoint.strategies.none import NoneStrategy
from ecrl_cli.checkpoint.strategies.overlapped import OverlappedStrategy
from ecrl_cli.checkpoint.strategies.strategy import Strategy
from ecrl_cli.config.identity import run_id
from ecrl_cli.config.schema import CheckpointConfig, RunConfig
from ecrl_cli.records.journal import Journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.span_clock import SpanClock

MakeStore = Callable[[Path, StoreConfig], CheckpointStore]


def make_strategy(
    config: RunConfig, pack: TrainState, layout: RunLayout, attempt: int, clock: SpanClock, make_store: MakeStore = CheckpointStore
) -> Strategy:
    """The strategy that `config.checkpoint` names, for this rank in this attempt. `make_store`: what makes the store that a rank itself writes to."""
    checkpoint = config.checkpoint
    if checkpoint.strategy == "none":
        return NoneStrategy()
    context = _context(config, pack, layout, attempt, clock)
    if checkpoint.strategy == "overlapped":
        return OverlappedStrategy(context, checkpoint.max_inflight)
    return BlockingStrategy(context, make_store(layout.checkpoints, StoreConfig.of(config, context.run_id)))


def make_in_memory(config: RunConfig, pack: TrainState, layout: RunLayout, attempt: int, clock: SpanClock, snapshots: SnapshotPair) -> Strategy:
    """`checkpoint=in_memory`, which needs the memory of a supervisor."""
    return InMemoryStrategy(_context(config, pack, layout, attempt, clock), config.checkpoint.max_inflight, snapshots)


def _context(config: RunConfig, pack: TrainState, layout: RunLayout, attempt: int, clock: SpanClock) -> StrategyContext:
    log = CheckpointLog(Journal(layout.attempt(attempt).checkpoints), layout, attempt)
    suffix, on_error = suffix_of(config.checkpoint), config.checkpoint.on_error
    return StrategyContext(pack, CapturePlanner(pack, suffix), layout, run_id(config), attempt, clock, log, on_error)


def suffix_of(checkpoint: CheckpointConfig) -> str:
    """What a single file ends in; empty for a group. format=torch is the published single file."""
    if checkpoint.format == "torch":
        return ".pt"
    return ".safetensors" if checkpoint.layout == "single" else ""
