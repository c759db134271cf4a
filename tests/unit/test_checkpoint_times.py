"""Where the seconds of a save go on record, by a clock that moves only where the test says so."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ecrl_cli.checkpoint.format.hashing import ImageHasher
from ecrl_cli.checkpoint.store.checkpoint_log import CheckpointLog, SaveTimes, save_and_record
from ecrl_cli.checkpoint.store.store import CheckpointStore
from ecrl_cli.errors import StorageError
from ecrl_cli.linux import clock
from ecrl_cli.records.events import CheckpointLine
from ecrl_cli.records.journal import Journal, read_journal
from ecrl_cli.records.layout import RunLayout
from tests.unit.checkpoint_support import image, store_at

# Seconds that pass at a point of the protocol.
WRITING = {"before_stage": 1.0, "half_part": 2.0, "after_part": 4.0}
COMMITTING = {
    "half_manifest": 64.0,
    "half_commit": 128.0,
    "before_rename": 256.0,
    "after_rename": 512.0,
    "after_root_sync": 1024.0,
}
SEARCHING, HASHING = 8192.0, 16.0  # for the predecessor, for the hashes


@pytest.fixture
def pass_(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets seconds pass."""
    now = [1000.0]

    def go_on(seconds: float) -> None:
        now[0] += seconds

    stopped = SimpleNamespace(clock_gettime=lambda _: now[0], CLOCK_MONOTONIC=1, time=lambda: 5.0)
    monkeypatch.setattr(clock, "time", stopped)
    entries, previous = ImageHasher.entries, CheckpointStore._previous

    def hashed(self: ImageHasher) -> Any:
        go_on(HASHING)
        return entries(self)

    def searched(self: CheckpointStore, step: int) -> str | None:
        go_on(SEARCHING)
        return previous(self, step)

    monkeypatch.setattr(ImageHasher, "entries", hashed)
    monkeypatch.setattr(CheckpointStore, "_previous", searched)
    return go_on


def slow(store: CheckpointStore, go_on: Callable[[float], None]) -> CheckpointStore:
    seconds = WRITING | COMMITTING
    store.crash_point = lambda point: go_on(seconds.get(point.partition(":")[0], 0.0))
    return store


def logged(layout: RunLayout) -> list[tuple[str, float, float, float]]:
    lines = read_journal(layout.attempt(0).checkpoints, CheckpointLine).events
    return [(line.event, line.write_s, line.hash_s, line.commit_s) for line in lines]


def log_of(root: Path) -> CheckpointLog:
    layout = RunLayout(root)
    return CheckpointLog(Journal(layout.attempt(0).checkpoints), layout, 0)


@pytest.mark.parametrize(("single", "files"), [(False, 4), (True, 1)], ids=["group", "single"])
def test_each_second_of_a_save_is_in_one_of_its_three_parts(
    tmp_path: Path, pass_: Callable[[float], None], single: bool, files: int
) -> None:
    log = log_of(tmp_path)
    with closing(slow(store_at(tmp_path), pass_)) as store:
        began = clock.monotonic()
        assert save_and_record(store, image(6, single=single), 0, log)
        took = clock.monotonic() - began
    write_s = 1.0 + files * (2.0 + 4.0)
    # a single file has no manifest of its own
    commit_s = SEARCHING + sum(COMMITTING.values()) - (64.0 if single else 0.0)
    assert logged(RunLayout(tmp_path)) == [("committed", write_s, HASHING, commit_s)]
    assert write_s + HASHING + commit_s == took
    assert log.last_save == SaveTimes(write_s, HASHING, commit_s)


def test_a_save_of_what_is_there_already_wrote_nothing(
    tmp_path: Path, pass_: Callable[[float], None]
) -> None:
    with closing(slow(store_at(tmp_path), pass_)) as store:
        store.save(image(6), 0)
        again = store.save(image(6), 0)
    assert (again.write_s, again.hash_s, again.commit_s) == (0.0, 0.0, SEARCHING + HASHING)


@pytest.mark.parametrize(
    "error",
    [StorageError.of("write", "it", OSError(errno.EIO, "no")), ValueError("a defect")],
    ids=["storage", "defect"],
)
def test_a_save_that_fails_has_written_all_the_time(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pass_: Callable[[float], None],
    error: Exception,
) -> None:
    def refused(*given: object) -> Any:
        pass_(7.0)
        raise error

    log = log_of(tmp_path)
    with closing(store_at(tmp_path)) as store:
        monkeypatch.setattr(store, "save", refused)
        assert not save_and_record(store, image(6), 0, log)
    assert logged(RunLayout(tmp_path)) == [
        ("failed", 7.0, 0.0, 0.0)
    ] and log.last_save == SaveTimes(7.0)
