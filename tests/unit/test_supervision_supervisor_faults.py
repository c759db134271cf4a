"""What the supervisor itself delivers: damage that really changes bytes and leaves something to
fall back to; kills when their time has come.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ecrl_cli.checkpoint.store.store import CheckpointStore, StoreConfig
from ecrl_cli.config.codec import encode
from ecrl_cli.failures.fault_log import read_fired
from ecrl_cli.failures.storage_faults import Damage, choose_damage, inflict
from ecrl_cli.history.load import load
from ecrl_cli.history.timeline import timeline
from ecrl_cli.records.events import Attempt, PlannedFailure
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.storage.files import write_json
from ecrl_cli.supervision.attempts.supervisor_faults import (
    WallClockFaults,
    inject_between_attempts,
    supervised_s,
)
from tests.runs.builder import RunBuilder, build_blk, config_of
from tests.runs.spoil import edit_json

DAMAGE = PlannedFailure(0, "corrupt", 0, 20, "rest")
EARLIER = (Attempt(0, 2, last_step=9), Attempt(1, 2, last_step=20))


def planned(layout: RunLayout, *entries: PlannedFailure) -> RunLayout:
    write_json(layout.failures, encode(entries))
    return layout


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    run = RunBuilder(tmp_path / "run", config_of("ref"))
    run.build()
    return CheckpointStore(run.layout.checkpoints, StoreConfig.of(run.config, run.run_id))


def rest(
    store: CheckpointStore, earlier: tuple[Attempt, ...], *entries: PlannedFailure
) -> RunLayout:
    layout = planned(RunLayout(store.root.parent), *entries)
    inject_between_attempts(layout, store, 7, earlier, chooses=True)
    return layout


def valid(store: CheckpointStore) -> list[bool]:
    return [store.verify(entry.path).ok for entry in store.entries()]


def test_the_newest_checkpoint_is_damaged_once_and_it_is_told_where(store: CheckpointStore) -> None:
    layout = rest(store, EARLIER, DAMAGE)
    assert valid(store) == [False, True, True]
    (fired,) = read_fired(layout)
    assert (fired.attempt, fired.kind) == (2, "corrupt") and fired.detail.startswith(
        "checkpoints/step_00000024/"
    )
    report = store.verify(store.entries()[0].path)
    assert report.layer == "hash" and Path(fired.detail.partition(":")[0]).name in report.reason
    inject_between_attempts(layout, store, 7, EARLIER, chooses=True)
    assert valid(store) == [False, True, True]


@pytest.mark.parametrize("earlier", [(), EARLIER[:1]])
def test_it_waits_until_its_step_has_been_done(
    store: CheckpointStore, earlier: tuple[Attempt, ...]
) -> None:
    assert read_fired(rest(store, earlier, DAMAGE)) == () and all(valid(store))


def test_it_waits_where_nobody_goes_back_to_a_checkpoint(store: CheckpointStore) -> None:
    layout = planned(RunLayout(store.root.parent), DAMAGE)
    inject_between_attempts(layout, store, 7, EARLIER, chooses=False)
    assert read_fired(layout) == () and all(valid(store))


def test_it_waits_where_nothing_would_be_left_to_fall_back_to(store: CheckpointStore) -> None:
    for entry in store.entries()[1:]:
        store.quarantine(entry.path)
    assert read_fired(rest(store, EARLIER, DAMAGE)) == () and valid(store) == [True]


def test_an_injector_that_changes_nothing_does_not_pass(tmp_path: Path) -> None:
    file = tmp_path / "part"
    file.write_bytes(bytes(100))
    inflict(Damage(file, ((3, 0x40),)))
    assert file.read_bytes()[3] == 0x40
    with pytest.raises(AssertionError, match="was not changed"):
        inflict(Damage(file, ((3, 0),)))
    assert choose_damage(file, 1) == choose_damage(file, 1) != choose_damage(file, 2)
    assert all(mask for seed in range(50) for _, mask in choose_damage(file, seed).flips)


def wall(kind: str = "kill", rank: int = 1, seconds: float = 5.0, index: int = 0) -> PlannedFailure:
    return PlannedFailure(index, kind, rank, 0, "wall", seconds=seconds)


def test_a_rank_is_killed_when_its_time_has_come_and_it_is_there(tmp_path: Path) -> None:
    layout = planned(RunLayout(tmp_path), wall(), wall(seconds=90.0, index=1))
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    strikes = WallClockFaults(layout, 3, began=100.0, spent_s=lambda: 2.0)
    assert strikes.left_s(100.0) == 3.0
    strikes.inject_due(102.9, {1: child.pid})
    strikes.inject_due(103.0, {0: os.getpid()})  # rank 1 has not said hello
    assert child.poll() is None and read_fired(layout) == () and strikes.left_s(103.5) == 0.05
    strikes.inject_due(103.5, {0: os.getpid(), 1: child.pid})
    assert child.wait(120) == -9
    (fired,) = read_fired(layout)
    assert (fired.index, fired.rank, fired.global_step, fired.attempt) == (0, 1, 0, 3)
    assert strikes.left_s(104.0) == 84.0
    assert WallClockFaults(layout, 4, 200.0, lambda: 500.0).left_s(200.0) == 0.05


def test_without_a_plan_nobody_waits(tmp_path: Path) -> None:
    assert WallClockFaults(RunLayout(tmp_path), 0, 0.0, lambda: 0.0).left_s(1.0) is None
    assert (
        WallClockFaults(planned(RunLayout(tmp_path), DAMAGE), 0, 0.0, lambda: 0.0).left_s(1.0)
        is None
    )


def test_supervised_time_is_that_of_all_stays_also_of_one_that_was_killed(tmp_path: Path) -> None:
    layout = build_blk(tmp_path)
    assert supervised_s(layout) == 0.0
    first = json.loads(layout.supervisor.read_text())["sessions"][0]
    later = {**first, "started_at": first["started_at"] + 1000.0}
    edit_json(
        layout.supervisor,
        lambda record: record.update(sessions=[{**first, "ended_at": None}, later]),
    )
    account = timeline(load(layout))
    assert supervised_s(layout) == account.windows[0][1] - account.windows[0][0] > 0
