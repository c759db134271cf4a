"""A save meets what is planned for it: once, at its point, in whichever process writes; the next
one is as ever.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from ecrl_cli.checkpoint.store.store import CheckpointStore, StoreConfig, WriteMode
from ecrl_cli.checkpoint.strategies.strategy import Strategy, StrategyInputs, make_strategy
from ecrl_cli.config.identity import run_id
from ecrl_cli.config.schema import CheckpointConfig, RunConfig, WriteModeConfig
from ecrl_cli.errors import StorageError
from ecrl_cli.failures.fault_log import fired_indices, read_fired
from ecrl_cli.failures.faulty_store import FaultyRunStore, store_for
from ecrl_cli.failures.storage_faults import POINTS, SLOW_SAVES, FailedSync, FullDisk
from ecrl_cli.linux.clock import monotonic
from ecrl_cli.records.events import CheckpointLine, PlannedFailure
from ecrl_cli.records.journal import Journal
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.span_clock import SpanClock
from tests.unit.checkpoint_support import CONFIG, image
from tests.unit.test_checkpoint_train_state import Run, config, lines


def entry(
    kind: str, step: int = 2, point: str = "half_part", index: int = 0, seconds: float = 0.0
) -> PlannedFailure:
    return PlannedFailure(index, kind, 0, step, "save", point=point, seconds=seconds)


def strategy(run: Run, root: Path, *planned: PlannedFailure) -> Strategy:
    layout = RunLayout(root)
    clock = SpanClock(Journal(layout.attempt(0).spans(0)), 0, monotonic(), "compute")
    store = store_for(
        layout.checkpoints, StoreConfig.of(config(), run_id(config())), layout, planned
    )
    made = make_strategy(StrategyInputs(config(), run.train_state, layout, 0, clock, store))
    made.prepare()
    return made


def save(run: Run, strategy: Strategy, steps: int = 1) -> None:
    for _ in range(steps):
        run.train(1)
        strategy.save(run.progress())


def ends(root: Path) -> list[CheckpointLine]:
    return [line for line in lines(root) if line.event in ("committed", "failed")]


def test_without_such_a_failure_the_store_is_the_plain_one(tmp_path: Path) -> None:
    make = partial(store_for, tmp_path, StoreConfig(), RunLayout(tmp_path))
    elsewhere = replace(entry("kill"), moment="boundary")
    stores = [make((elsewhere,)), make((entry("eio"),))]
    assert [type(store) for store in stores] == [CheckpointStore, FaultyRunStore]
    for store in stores:
        store.close()


@pytest.mark.parametrize(("kind", "name"), [("enospc", "write: ENOSPC"), ("eio", "fsync: EIO")])
@pytest.mark.parametrize(
    "point", ["half_part", "before_manifest", "half_part:optimizer.safetensors"]
)
def test_one_save_fails_and_the_next_is_as_ever(
    tmp_path: Path, kind: str, name: str, point: str
) -> None:
    run = Run()
    strategist = strategy(run, tmp_path, entry(kind, point=point))
    save(run, strategist, 4)
    assert [(line.event, line.global_step) for line in ends(tmp_path)] == [
        ("committed", 1),
        ("failed", 2),
        ("committed", 3),
        ("committed", 4),
    ]
    assert name in str(ends(tmp_path)[1].reason)
    (fired,) = read_fired(RunLayout(tmp_path))
    assert (fired.kind, fired.global_step, fired.at_step, fired.attempt) == (kind, 2, 2, 0)
    assert not list(RunLayout(tmp_path).checkpoints.glob(".stage_*"))
    strategist.close()


@pytest.mark.parametrize("single", [False, True], ids=["group", "single"])
@pytest.mark.parametrize(
    "mode",
    [(True, True, True), (True, True, False), (False, False, False)],
    ids=["dirsync", "nodirsync", "unsafe"],
)
def test_what_is_not_refused_fails_the_save_at_its_point_and_what_is_refused_would_not(
    tmp_path: Path, mode: tuple[bool, ...], single: bool
) -> None:
    settings = RunConfig(
        write_mode=WriteModeConfig("mode", *mode),
        checkpoint=CheckpointConfig(layout="single" if single else "group", every=1),
        target_steps=50,
    )
    for kind in (FullDisk(), FailedSync()):
        for point in POINTS[: POINTS.index("after_rename") + 1]:
            root = tmp_path / f"{kind.name}-{point}"
            root.mkdir()
            store = store_for(
                root,
                StoreConfig(WriteMode(*mode), integrity=CONFIG.integrity),
                RunLayout(root),
                (entry(kind.name, 1, point),),
            )
            store.claim(0)
            with suppress(StorageError):
                store.save(image(1, single=single), 0)
            saved = store.newest_valid().report is not None
            store.close()
            assert saved is bool(kind.refuses(settings) or kind.wrong_point(point, settings)), (
                kind.name,
                point,
            )


def test_the_first_save_due_behind_its_step_is_struck_and_two_entries_take_two(
    tmp_path: Path,
) -> None:
    run = Run()
    run.train(4)
    strategist = strategy(run, tmp_path, entry("enospc", 3), entry("eio", 3, index=1))
    save(run, strategist, 3)
    assert [(line.event, line.global_step) for line in ends(tmp_path)] == [
        ("failed", 5),
        ("failed", 6),
        ("committed", 7),
    ]
    strategist.close()


def test_what_another_attempt_has_claimed_does_not_strike_again(tmp_path: Path) -> None:
    for number in range(2):
        run = Run()
        strategist = strategy(run, tmp_path, entry("enospc", 1))
        save(run, strategist)
        strategist.close()
        assert ends(tmp_path)[-1].event == ("committed" if number else "failed")


@pytest.mark.parametrize("point", ["before_stage", "half_commit", "after_rename", "after_pointer"])
def test_the_writer_dies_at_its_point(tmp_path: Path, point: str) -> None:
    """In a process of its own, which SIGKILL takes; what was acknowledged before is there."""
    pid = os.fork()
    if pid == 0:
        torch.set_num_threads(1)
        run = Run()
        save(run, strategy(run, tmp_path, entry("writer", point=point)), 3)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -9
    assert fired_indices(RunLayout(tmp_path)) == {0}
    there = {path.name for path in RunLayout(tmp_path).checkpoints.glob("step_*")}
    assert there == {"step_00000001"} | ({"step_00000002"} if point.startswith("after_") else set())


def test_slow_saves_are_slow_and_then_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    naps: list[float] = []
    monkeypatch.setattr(time, "sleep", lambda seconds: naps.append(seconds) if seconds else None)
    run, counts = Run(), []
    strategist = strategy(run, tmp_path, entry("slow_disk", point="", seconds=0.125))
    for _ in range(SLOW_SAVES + 3):
        save(run, strategist)
        counts.append(len(naps))
    each = [after - before for before, after in zip([0, *counts], counts, strict=False)]
    assert each[0] == 0 and all(each[1 : 1 + SLOW_SAVES]) and not any(each[1 + SLOW_SAVES :])
    assert set(naps) == {0.125}
    strategist.close()
