"""Snapshots in memory: whoever dies while one is taken leaves the one before; what is gone on with
is what was taken, bit for bit.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ecrl_cli.checkpoint.capture import shared_memory as records
from ecrl_cli.checkpoint.capture.loading import load_snapshot
from ecrl_cli.checkpoint.capture.shared_memory import InvalidSnapshot, SnapshotPair
from ecrl_cli.checkpoint.format.names import DIGEST, FINITE
from ecrl_cli.checkpoint.format.train_document import TrainPosition
from ecrl_cli.checkpoint.store.synthetic import synthetic_plan
from ecrl_cli.checkpoint.strategies.in_memory import InMemoryStrategy
from ecrl_cli.checkpoint.strategies.strategy import StrategyInputs, make_strategy
from ecrl_cli.errors import EcrlError, NoValidCheckpoint
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.records.events import Attempt, RankLine
from ecrl_cli.records.journal import Journal, read_journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.span_clock import SpanClock
from ecrl_cli.storage.writing import BLOCK
from ecrl_cli.supervision.resume import choose, newest_snapshot, order
from tests.unit.checkpoint_support import commit, store_at
from tests.unit.test_checkpoint_train_state import Run, config


@pytest.fixture
def snapshots() -> Iterator[SnapshotPair]:
    made = SnapshotPair.create()
    yield made
    made.close()


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    (tmp_path / "failures.json").write_text("[]")
    return RunLayout(tmp_path)


def strategy_of(
    run: Run, layout: RunLayout, snapshots: SnapshotPair, attempt: int = 0
) -> InMemoryStrategy:
    clock = SpanClock(Journal(layout.attempt(attempt).spans(0)), attempt, monotonic(), "compute")
    made = make_strategy(
        StrategyInputs(
            config("in_memory"), run.train_state, layout, attempt, clock, snapshots=snapshots
        )
    )
    assert isinstance(made, InMemoryStrategy)
    made.prepare()
    return made


def line(run: Run, attempt: int, state_digest: str | None) -> RankLine:
    return RankLine(
        run.global_step, 0, 0, 0, 1, "", 8, 0.5, attempt, 0.1, 0.0, 0.0, state_digest=state_digest
    )


def trained(
    run: Run,
    layout: RunLayout,
    strategy: InMemoryStrategy,
    steps: int,
    *,
    attempt: int = 0,
    digests: bool = False,
) -> None:
    """So many steps, each logged and then remembered, as the loop does it."""
    journal = Journal(layout.attempt(attempt).rank(0))
    for _ in range(steps):
        run.train(1)
        journal.append(line(run, attempt, run.train_state.state_digest() if digests else None))
        strategy.snapshot(run.progress())
    journal.close()


def whole(snapshots: SnapshotPair) -> list[tuple[int, int]]:
    return [(each.global_step, each.attempt) for each in snapshots.whole()]


def taken(layout: RunLayout, snapshots: SnapshotPair, steps: int = 3, **more: Any) -> Run:
    """A run that has done its steps and is gone."""
    run = Run()
    run.train(1)
    strategy = strategy_of(run, layout, snapshots)
    trained(run, layout, strategy, steps, **more)
    strategy.close()
    return run


def damage(snapshots: SnapshotPair, number: int, offset: int) -> None:
    byte = os.pread(snapshots.fds[number], 1, offset)
    os.pwrite(snapshots.fds[number], bytes([byte[0] ^ 1]), offset)


def place_of(snapshots: SnapshotPair, name: str) -> int:
    """Where the newest snapshot has that tensor."""
    return next(place.offset for place in snapshots.whole()[0].tensors if place.spec.name == name)


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_what_is_gone_on_with_is_what_was_taken(
    layout: RunLayout, snapshots: SnapshotPair, kind: str
) -> None:
    run = Run(kind)
    run.train(1)
    strategy = strategy_of(run, layout, snapshots)
    trained(run, layout, strategy, 4)
    assert whole(snapshots) == [(5, 0), (4, 0)]
    found, _ = newest_snapshot(layout, snapshots, behind=0)
    assert found is not None and (found.attempt, found.global_step, found.content.state_digest) == (
        0,
        5,
        run.train_state.state_digest(),
    )
    digests, on = run.train_state.digests(), run.train(3)
    other = Run(kind, seed=99)
    loaded = load_snapshot(snapshots, 5, found.content.sha256, DIGEST)
    progress = other.train_state.become(loaded.tensors, loaded.train)
    assert other.train_state.digests() == digests
    assert other.train(3) == on, (
        "another trajectory: a generator, the scaler or the schedule is not as it was"
    )
    assert progress == TrainPosition(5, 0, 5, 1337, "c" * 64)
    strategy.close()


class Dead(BaseException):
    """Takes the place of SIGKILL."""


def die() -> None:
    raise Dead


def gathering(run: Run, monkeypatch: pytest.MonkeyPatch, die: Callable[[], None]) -> None:
    """Dies when the ranks have given each other what is needed: failure moment `capture`."""
    gather = run.train_state.gather

    def gathered(progress: TrainPosition) -> None:
        gather(progress)
        die()

    monkeypatch.setattr(run.train_state, "gather", gathered)


def copying(run: Run, monkeypatch: pytest.MonkeyPatch, die: Callable[[], None]) -> None:
    """Dies when half of the tensors have been copied."""
    copy = torch._foreach_copy_

    def half(targets: list[torch.Tensor], sources: list[torch.Tensor], **more: Any) -> None:
        copy(targets[: len(targets) // 2], sources[: len(sources) // 2], **more)
        die()

    monkeypatch.setattr(torch, "_foreach_copy_", half)


def committing(run: Run, monkeypatch: pytest.MonkeyPatch, die: Callable[[], None]) -> None:
    """Dies with all in place but the word."""

    class Word:
        @staticmethod
        def pack_into(view: memoryview, at: int, word: int) -> None:
            if word:
                die()
            records._RECORD.pack_into(view, at, 0, 0, 0, 0, 0, b"")

    monkeypatch.setattr(records, "_WORD", Word)


@pytest.mark.parametrize("moment", [gathering, copying, committing])
def test_a_death_while_a_snapshot_is_taken_leaves_the_one_before(
    layout: RunLayout,
    snapshots: SnapshotPair,
    monkeypatch: pytest.MonkeyPatch,
    moment: Callable[..., None],
) -> None:
    """The memory is shared: it holds at each instant what a SIGKILL at that instant leaves in
    it.
    """
    run = Run()
    run.train(1)
    strategy = strategy_of(run, layout, snapshots)
    trained(run, layout, strategy, 3, digests=True)
    moment(run, monkeypatch, die)
    with pytest.raises(Dead):
        trained(run, layout, strategy, 1, digests=True)
    monkeypatch.undo()
    assert whole(snapshots) == [(4, 0)]
    found, skipped = newest_snapshot(layout, snapshots, behind=0)
    lines = read_journal(layout.attempt(0).rank(0), RankLine).events
    assert (
        found is not None and skipped == () and found.content.state_digest == lines[-2].state_digest
    )
    assert lines[-1].global_step == 5


def test_the_next_attempt_writes_over_what_it_does_not_go_on_with(
    layout: RunLayout, snapshots: SnapshotPair
) -> None:
    run = taken(layout, snapshots, 3)
    assert whole(snapshots) == [(4, 0), (3, 0)]
    strategy = strategy_of(run, layout, snapshots, attempt=1)
    assert whole(snapshots) == [(4, 0)], "making ready must not cost the newest"
    trained(run, layout, strategy, 1, attempt=1)
    assert whole(snapshots) == [(5, 1), (4, 0)]
    strategy.close()


def test_a_state_that_has_grown_gets_a_larger_place(
    layout: RunLayout, snapshots: SnapshotPair
) -> None:
    taken(layout, snapshots)
    larger = Run("adamw", width=64)
    larger.train(8)
    strategy = strategy_of(larger, layout, snapshots, attempt=1)
    trained(larger, layout, strategy, 2, attempt=1)
    assert whole(snapshots) == [(10, 1), (9, 1)]
    found, _ = newest_snapshot(layout, snapshots, behind=0)
    assert found is not None and found.content.state_digest == larger.train_state.state_digest()
    strategy.close()


def test_a_train_json_that_has_outgrown_its_room_gets_a_larger_place(
    layout: RunLayout, snapshots: SnapshotPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run()
    run.train(1)
    strategy = strategy_of(run, layout, snapshots)
    trained(run, layout, strategy, 2)
    document = run.train_state.train_document
    monkeypatch.setattr(
        run.train_state, "train_document", lambda *given: document(*given) + b" " * 2**16
    )
    trained(run, layout, strategy, 2)
    assert whole(snapshots) == [(5, 0), (4, 0)]
    strategy.close()


@pytest.mark.parametrize("back", [BLOCK, BLOCK - 8, BLOCK - 40, BLOCK + 1])
def test_damaged_records_make_no_snapshot(
    layout: RunLayout, snapshots: SnapshotPair, back: int
) -> None:
    """The word, the attempt, the hash; and, found by its own means, the table."""
    taken(layout, snapshots)
    newest = snapshots.whole()[0]
    offset = len(newest.memory) - back
    if back > BLOCK:
        offset = records._RECORD.unpack_from(newest.memory, len(newest.memory) - BLOCK)[2] + 5
    damage(snapshots, newest.number, offset)
    assert whole(snapshots) == [(3, 0)]


def test_where_the_ranks_log_their_state_a_flipped_bit_is_found(
    layout: RunLayout, snapshots: SnapshotPair
) -> None:
    run = taken(layout, snapshots, digests=True)
    damage(snapshots, snapshots.whole()[0].number, place_of(snapshots, "parameters.first.weight"))
    found, skipped = newest_snapshot(layout, snapshots, behind=0)
    assert found is not None and found.global_step == 3
    assert [(each.global_step, each.attempt, each.reason) for each in skipped] == [
        (4, 0, "its state is not the one that rank 0 logged")
    ]
    assert whole(snapshots) == [(3, 0)], "what was refused must be written over first"
    assert run.global_step == 4


def test_a_state_that_is_not_finite_is_no_state_to_go_on_with(
    layout: RunLayout, snapshots: SnapshotPair
) -> None:
    run = Run()
    run.train(1)
    strategy = strategy_of(run, layout, snapshots)
    trained(run, layout, strategy, 1)
    with torch.no_grad():
        run.model.last.weight[0, 0] = float("nan")
    trained(run, layout, strategy, 2)
    strategy.close()
    found, skipped = newest_snapshot(layout, snapshots, behind=0)
    assert found is None and [each.global_step for each in skipped] == [4, 3]
    assert skipped[0].reason == "parameters.last.weight holds a NaN or an infinity"


def test_a_tensor_that_need_not_be_finite_does_not_stop_a_run_from_going_on(
    layout: RunLayout, snapshots: SnapshotPair
) -> None:
    """By `checkpoint.finite`: an optimizer may hold an infinity where `model` or less is asked
    for.
    """
    run = Run()
    run.train(1)
    strategy = strategy_of(run, layout, snapshots)
    next(iter(run.optimizer.state.values()))["exp_avg"].view(-1)[0] = float("inf")
    strategy.snapshot(run.progress())
    strategy.close()
    newest = snapshots.whole()[0]
    for setting, components in FINITE.items():
        if "optimizer" in components:
            with pytest.raises(InvalidSnapshot, match=r"optimizer\..* holds a NaN or an infinity"):
                newest.check_finite(setting)
        else:
            newest.check_finite(setting)


def test_a_step_that_rank_0_never_logged_is_not_gone_on_with(
    layout: RunLayout, snapshots: SnapshotPair
) -> None:
    run = taken(layout, snapshots)
    strategy = strategy_of(run, layout, snapshots, attempt=1)
    run.train(1)
    strategy.snapshot(run.progress())
    strategy.close()
    found, skipped = newest_snapshot(layout, snapshots, behind=0)
    assert found is not None and (found.global_step, found.attempt) == (4, 0)
    assert [each.reason for each in skipped] == ["rank 0 logged no such step"]


def test_what_changes_between_choice_and_load_is_not_loaded(
    layout: RunLayout, snapshots: SnapshotPair
) -> None:
    """And not chosen again: an error that a restart cures."""
    taken(layout, snapshots)
    found, _ = newest_snapshot(layout, snapshots, behind=0)
    assert found is not None
    damage(snapshots, snapshots.whole()[0].number, place_of(snapshots, "rng.rank0.torch"))
    with pytest.raises(EcrlError, match="not the one that was chosen") as raised:
        load_snapshot(snapshots, found.global_step, found.content.sha256, DIGEST)
    assert raised.value.exit_code == 1
    assert whole(snapshots) == [(3, 0)]


@pytest.mark.parametrize(
    ("durable", "step", "memory"), [(2, 4, "snapshot"), (4, 4, ""), (9, 9, "")]
)
def test_the_newest_of_memory_and_disk_is_chosen_and_disk_of_two_alike(
    layout: RunLayout, snapshots: SnapshotPair, durable: int, step: int, memory: str
) -> None:
    taken(layout, snapshots)
    store = store_at(layout.root)
    commit(store, durable)
    choice = choose(layout, store, (Attempt(0, 1, last_step=9),), snapshots)
    made = order(layout, replace(config("in_memory"), world_size=1), (Attempt(0, 1),), choice)
    assert (made.resume_step, made.memory, made.continues) == (step, memory, 0 if memory else None)
    assert (made.resume_from is None, made.snapshot_sha256 != "") == (bool(memory), bool(memory))


def test_memory_saves_a_run_whose_every_checkpoint_is_damaged(
    layout: RunLayout, snapshots: SnapshotPair
) -> None:
    taken(layout, snapshots)
    store = store_at(layout.root)
    saved = commit(store, 2)
    choose(layout, store, ())
    part = next(path for path in saved.path.iterdir() if path.name.startswith("model"))
    part.write_bytes(hashlib.sha256(b"").digest())
    with pytest.raises(NoValidCheckpoint):
        choose(layout, store, (Attempt(0, 1, last_step=4),))
    choice = choose(layout, store, (Attempt(0, 1, last_step=4),), snapshots)
    assert choice.snapshot is not None and choice.snapshot.global_step == 4
    assert [each.path for each in choice.rejected] == ["checkpoints/step_00000002"]


def test_a_snapshot_fits_up_to_its_record_and_has_room_to_grow() -> None:
    parts, train = synthetic_plan(4000, 2000).parts, b"{}" * 100
    table = len(records.table_of(parts))
    for image, more in ((BLOCK, 0), (BLOCK, 1), (5 * BLOCK, 7)):
        record = records.SnapshotRecord(
            memoryview(bytearray(image + table + len(train) + more + BLOCK)), image, parts
        )
        assert record.fits(train + b"x" * more) and not record.fits(train + b"x" * (more + 1))
        size = records.room(image, parts, train)
        assert size % BLOCK == 0 and records.SnapshotRecord(
            memoryview(bytearray(size)), image, parts
        ).fits(2 * train + b"x" * BLOCK)
        assert size - (image + table + 2 * len(train) + 2 * BLOCK) in range(BLOCK)


def test_of_two_snapshots_of_one_step_the_later_attempts_is_newer(snapshots: SnapshotPair) -> None:
    parts, train = synthetic_plan(4000, 2000).parts, b"{}"
    end = synthetic_plan(4000, 2000).nbytes
    for number, (step, attempt) in enumerate(((6, 2), (6, 1))):
        size = snapshots.make_room(number, records.room(end, parts, train))
        memory = records.Memory(os.dup(snapshots.fds[number]), size)
        record = records.SnapshotRecord(memory.view, end, parts)
        record.commit(step, attempt, train)
        memory.close()
    assert whole(snapshots) == [(6, 2), (6, 1)] and snapshots.free() == [1]
    snapshots.withdraw(0)
    assert whole(snapshots) == [(6, 1)] and snapshots.free() == [0]


def test_a_supervisor_that_has_just_begun_has_nothing_in_memory(
    layout: RunLayout, snapshots: SnapshotPair
) -> None:
    assert newest_snapshot(layout, snapshots, behind=0) == (None, ())
    assert snapshots.free() == [0, 1]
