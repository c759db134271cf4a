"""What every checkpoint strategy keeps: it does what its object says, and only that. One that a
package registers is held to it as ours are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from ecrl_cli.checkpoint.capture.shared_memory import SnapshotPair
from ecrl_cli.checkpoint.format.train_document import TrainPosition
from ecrl_cli.checkpoint.store.integrity import IntegrityConfig, IntegrityReport
from ecrl_cli.checkpoint.store.store import CheckpointStore, StoreConfig
from ecrl_cli.checkpoint.strategies.foreign import restore_foreign
from ecrl_cli.checkpoint.strategies.strategy import Strategy, StrategyInputs, make_strategy
from ecrl_cli.config.schema import (
    CAPTURES,
    CheckpointConfig,
    ElasticConfig,
    RunConfig,
    SupervisionConfig,
)
from ecrl_cli.config.strategies import STRATEGIES, StrategyKind
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.records.journal import Journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.run_config import write_run_config
from ecrl_cli.records.span_clock import SpanClock
from tests.contract.variants import check_description, check_registration, refused
from tests.needs import require
from tests.open_files import open_files
from tests.unit.checkpoint_support import writer_process
from tests.unit.test_checkpoint_train_state import Run, lines

MEMORY = "/memfd:ecrl-"  # what snapshots lie in
IN_STEP, BESIDE = {"write", "hash", "commit", "settle"}, {"backpressure", "enqueue"}


# here it is; async_save says so in its thread
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def captures() -> list[tuple[str, str]]:
    """Every strategy with each way to capture that it has."""
    return [
        (name, capture)
        for name in STRATEGIES.names()
        for capture in CAPTURES
        if capture == "copy" or STRATEGIES.of(name).defers
    ]


@pytest.fixture(params=captures(), ids="-".join)
def chosen(request: pytest.FixtureRequest) -> CheckpointConfig:
    strategy, capture = request.param
    return CheckpointConfig(strategy=strategy, capture=capture)


@pytest.fixture
def kind(chosen: CheckpointConfig) -> StrategyKind:
    found = STRATEGIES.of(chosen.strategy)
    if found.checkpointer:
        require(*found.checkpointer.modules)
    return found


@dataclass
class Rank:
    """One rank in one attempt, with what the supervisor gives it."""

    run: Run
    layout: RunLayout
    strategy: Strategy
    snapshots: SnapshotPair | None


@pytest.fixture
def rank(kind: StrategyKind, chosen: CheckpointConfig, tmp_path: Path) -> Iterator[Rank]:
    config = RunConfig(checkpoint=chosen)
    layout, run = RunLayout(tmp_path), Run()
    write_run_config(layout, config)
    run.train(1)
    with ExitStack() as stack:
        if kind.needs_writer:
            stack.enter_context(writer_process(layout))
        snapshots = SnapshotPair.create() if kind.snapshots else None
        clock = SpanClock(Journal(layout.attempt(0).spans(0)), 0, monotonic(), "compute")
        strategy = make_strategy(
            StrategyInputs(config, run.train_state, layout, 0, clock, snapshots=snapshots)
        )
        yield Rank(run, layout, strategy, snapshots)
        strategy.close()
        strategy.close()  # what a rank that is told to leave may do again


def test_it_is_said_in_one_sentence_and_chosen_by_a_file(kind: StrategyKind) -> None:
    check_description(STRATEGIES, kind.name, "checkpoint", "strategy")


def test_what_cannot_be_combined_is_refused_in_one_line(
    kind: StrategyKind, chosen: CheckpointConfig
) -> None:
    config = RunConfig(checkpoint=chosen)
    assert refused(kind, config) == ""
    resized = refused(kind, replace(config, elastic=ElasticConfig(schedule={10: 1})))
    assert ("elastic.schedule" in resized) == (not kind.saves or kind.checkpointer is not None)
    spread = refused(kind, replace(config, supervision=SupervisionConfig(nodes=2)))
    assert (f"{kind.name} keeps its snapshots on one machine" in spread) == (kind.snapshots > 0)
    seldom = refused(kind, replace(config, checkpoint=replace(chosen, memory_every=5)))
    assert ("keeps nothing in memory" in seldom) == (kind.saves and not kind.snapshots)
    deferred = refused(kind, replace(config, checkpoint=replace(chosen, capture="deferred")))
    assert ("nobody who would copy" in deferred) == (kind.saves and not kind.defers)
    serialised = refused(
        kind, replace(config, checkpoint=replace(chosen, layout="single", format="torch"))
    )
    assert ("a .pt file is serialised" in serialised) == (chosen.capture == "deferred")


def test_the_object_does_not_contradict_itself(kind: StrategyKind) -> None:
    assert kind.saves or not (kind.background or kind.snapshots), (
        "what saves nothing needs no writer, and no snapshot goes on from nothing"
    )
    assert kind.needs_writer or not kind.defers, "what is deferred is copied by the writer"
    bound = kind.in_flight(CheckpointConfig(max_inflight=7))
    assert bound == (7 if kind.needs_writer else 1 if kind.saves else 0)
    assert kind.checkpointer is None or kind.background == kind.checkpointer.background


def test_what_is_saved_is_restored_and_logged_as_the_object_says(
    kind: StrategyKind, chosen: CheckpointConfig, rank: Rank
) -> None:
    run, strategy = rank.run, rank.strategy
    strategy.prepare()
    for _ in range(3):
        run.train(1)
        strategy.save(run.progress())
    digests, step = run.train_state.digests(), run.global_step
    run.train(1)
    strategy.flush()
    strategy.confirm(step)
    store = CheckpointStore(
        rank.layout.checkpoints,
        StoreConfig(integrity=IntegrityConfig(checkpointer=kind.checkpointer)),
    )
    found = store.newest_valid().report if rank.layout.checkpoints.exists() else None
    assert (found is not None) == kind.saves
    if found is None:
        assert not rank.layout.attempt(0).checkpoints.exists()
        return
    other = Run(seed=99)
    assert (
        restored(kind, other, found).global_step == step and other.train_state.digests() == digests
    )
    logged = lines(rank.layout.root)
    assert sum(line.event == "committed" for line in logged) == 3
    assert max(line.inflight for line in logged) <= kind.in_flight(CheckpointConfig())
    assert [bool(line.deferred_bytes) for line in logged if line.event == "submitted"] == [
        chosen.capture == "deferred"
    ] * 3
    copied = [
        line for line in logged if line.event == "submitted" and 0 < line.copy_s <= line.snapshot_s
    ]
    assert len(copied) == (0 if kind.checkpointer else 3), "the copy is a part of the capture"
    parts = {name for line in logged if line.event == "released" for name in line.stall_parts}
    # what another one does in its call is one part: write
    own = IN_STEP - ({"hash", "commit"} if kind.checkpointer else set())
    assert parts >= (own if kind.writes_in_step else BESIDE) | {
        "snapshot",
        "barrier",
    } and not parts & (BESIDE if kind.writes_in_step else IN_STEP)


def restored(kind: StrategyKind, run: Run, found: IntegrityReport) -> TrainPosition:
    sha256 = found.commit_sha256 or ""
    return (
        restore_foreign(run.train_state, kind.checkpointer, found.path, sha256)
        if kind.checkpointer
        else run.train_state.restore(found.path, sha256)
    )


class RecordingCollectives:
    """The other rank of two, which does what this one does. `told`: the events in the journal each
    time they met.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.told = root, list[list[str]]()

    def barrier(self) -> None:
        self.told.append([line.event for line in lines(self.root)])

    def all_gather(self, own: torch.Tensor) -> list[torch.Tensor]:
        return [own, own]


def test_no_rank_leaves_a_save_before_rank_0_has_done_its_part(
    kind: StrategyKind, rank: Rank
) -> None:
    collectives = RecordingCollectives(rank.layout.root)
    rank.run.train_state.world_size, rank.run.train_state.peers = 2, collectives
    rank.strategy.prepare()
    rank.strategy.save(rank.run.progress())
    rank.strategy.flush()
    assert len(collectives.told) == kind.saves
    assert all("submitted" in events and "released" not in events for events in collectives.told)


def test_a_rank_that_is_not_rank_0_writes_nothing(kind: StrategyKind, rank: Rank) -> None:
    """No checkpoint, no line, no claim: two ranks that write would write over each other."""
    if kind.checkpointer:
        pytest.skip("what another rank writes is the checkpointer's business")
    rank.run.train_state.rank, rank.run.train_state.world_size, rank.run.train_state.peers = (
        1,
        2,
        RecordingCollectives(rank.layout.root),
    )
    rank.strategy.prepare()
    rank.strategy.save(rank.run.progress())
    rank.strategy.snapshot(rank.run.progress())
    rank.strategy.flush()
    rank.strategy.confirm(rank.run.global_step)
    assert not rank.layout.checkpoints.exists() and lines(rank.layout.root) == []
    if rank.snapshots:
        assert rank.snapshots.whole() == []
        rank.snapshots.close()


def test_a_strategy_that_is_closed_holds_no_memory(
    kind: StrategyKind, chosen: CheckpointConfig, rank: Rank
) -> None:
    """Deferred: but for the piece in which the tensors lie from then on."""
    before = open_files(MEMORY)
    rank.strategy.prepare()
    rank.strategy.save(rank.run.progress())
    rank.strategy.flush()
    assert bool(open_files(MEMORY) - before) == (kind.saves and not kind.checkpointer)
    rank.strategy.close()
    assert len(open_files(MEMORY) - before) == (chosen.capture == "deferred")


def test_a_snapshot_is_kept_where_the_object_says_so(kind: StrategyKind, rank: Rank) -> None:
    rank.strategy.prepare()
    for _ in range(3):
        rank.run.train(1)
        rank.strategy.snapshot(rank.run.progress())
    kept = [each.global_step for each in rank.snapshots.whole()] if rank.snapshots else []
    assert kept == [rank.run.global_step - number for number in range(kind.snapshots)]
    if rank.snapshots:
        rank.snapshots.close()


def test_without_a_writer_only_what_needs_one_fails_on_record(
    kind: StrategyKind, chosen: CheckpointConfig, tmp_path: Path
) -> None:
    config = RunConfig(checkpoint=chosen)
    layout, run = RunLayout(tmp_path), Run()
    clock = SpanClock(Journal(layout.attempt(0).spans(0)), 0, monotonic(), "compute")
    strategy = make_strategy(
        StrategyInputs(config, run.train_state, layout, 0, clock, snapshots=SnapshotPair.create())
    )
    strategy.prepare()
    strategy.save(run.progress())
    if not kind.needs_writer:
        strategy.flush()
    strategy.close()
    ended = (
        [line.event for line in lines(tmp_path) if line.event in ("committed", "failed")]
        if kind.saves
        else []
    )
    assert ended == (["failed"] if kind.needs_writer else ["committed"] if kind.saves else [])
    told = {line.event: line for line in lines(tmp_path)} if kind.needs_writer else {}
    assert (
        not told
        or told["released"].stall_parts.get("backpressure", 0.0) == told["submitted"].backpressure_s
    ), "lines of one save disagree"


def test_a_package_registers_nothing_else_under_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    check_registration(STRATEGIES, monkeypatch)
