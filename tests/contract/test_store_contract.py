"""Killed at every point of the protocol, under every write mode, in both layouts: what recovery finds is whole, and nothing acknowledged is lost.

The process is killed by SIGKILL inside the real store code; the page cache survives, so this is the contract for process crashes.
"""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from ecrl_cli.checkpoint.guard import GuardConfig
from ecrl_cli.checkpoint.manifest import components
from ecrl_cli.checkpoint.protocol import CRASH_POINTS, MODEL, OPTIMIZER, RNG, TRAIN
from ecrl_cli.checkpoint.store import CheckpointStore, StoreConfig
from ecrl_cli.checkpoint.synthetic import RUN_ID, image_components, synthetic_image, synthetic_plan
from ecrl_cli.storage.writing import WriteMode

MODES = {
    "unsafe": WriteMode(sync_files=False, atomic=False, sync_directories=False),
    "atomic_nodirsync": WriteMode(sync_directories=False),
    "atomic_dirsync": WriteMode(),
}
ATTEMPT = 3


def plan(single: bool):
    return synthetic_plan(40_000, 20_000, single=single)


def config(mode: str) -> StoreConfig:
    return StoreConfig(mode=MODES[mode], keep=2, guard=GuardConfig(run_id=RUN_ID))


def commit(store: CheckpointStore, step: int, single: bool, attempt: int = ATTEMPT, seed: int = 1) -> None:
    image = synthetic_image(seed, step, plan(single))
    store.settle(store.save(image, attempt), image)


def store_with_history(root: Path, mode: str, single: bool) -> CheckpointStore:
    store = CheckpointStore(root / "checkpoints", config(mode))
    store.claim(ATTEMPT)
    for step in (10, 20, 30):
        commit(store, step, single)
    return store


def visited(root: Path, mode: str, single: bool) -> list[str]:
    """The points that the save of step 40 passes."""
    points: list[str] = []
    store = store_with_history(root, mode, single)
    store.points = points.append
    commit(store, 40, single)
    store.close()
    return points


def in_a_child(work: Callable[[Callable[[], None]], None]) -> tuple[bool, bool]:
    """Run `work(acknowledge)` in a forked process; gives whether it acknowledged, and whether it was killed."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads of this process hold nothing that the child needs
        pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            work(lambda: os.write(write, b"a") and None)
        finally:
            os._exit(0)
    os.close(write)
    acknowledged = os.read(read, 1) == b"a"
    os.close(read)
    _, status = os.waitpid(pid, 0)
    return acknowledged, os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def crash_at(root: Path, mode: str, single: bool, point: str) -> bool:
    """Save step 40 and die at `point`; gives whether the save had been acknowledged."""

    def die(name: str) -> None:
        if name == point:
            os.kill(os.getpid(), signal.SIGKILL)

    def work(acknowledge: Callable[[], None]) -> None:
        store = CheckpointStore(root / "checkpoints", config(mode), points=die)
        image = synthetic_image(1, 40, plan(single))
        saved = store.save(image, ATTEMPT)
        acknowledge()
        store.settle(saved, image)

    acknowledged, killed = in_a_child(work)
    assert killed, f"{point} did not kill"
    return acknowledged


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("single", [False, True], ids=["group", "single"])
def test_a_killed_writer_leaves_the_new_checkpoint_or_the_previous_one(tmp_path: Path, mode: str, single: bool) -> None:
    points = visited(tmp_path / "dry", mode, single) if (tmp_path / "dry").mkdir() is None else []
    assert len(points) == len(set(points)) >= 10
    for number, point in enumerate(points):
        root = tmp_path / str(number)
        root.mkdir()
        store_with_history(root, mode, single).close()
        acknowledged = crash_at(root, mode, single, point)

        store = CheckpointStore(root / "checkpoints", config(mode))
        choice = store.newest_valid()
        assert choice.report is not None and choice.report.manifest is not None, point
        found = choice.report.global_step
        assert found in ((40,) if acknowledged else (30, 40)), point
        assert components(choice.report.manifest) == image_components(synthetic_image(1, found, plan(single))), point
        if mode != "unsafe" and not single:
            assert not choice.rejected, f"{point}: a half checkpoint has a name that counts"

        store.claim(ATTEMPT + 1)
        for rejected in choice.rejected:
            store.set_aside(root / rejected.path)
        commit(store, 40, single, ATTEMPT + 1)
        again = store.newest_valid()
        assert again.report is not None and again.report.global_step == 40 and not again.rejected, point
        assert not [path for path in store.root.iterdir() if path.name.startswith((".stage", ".trash", ".tmp"))], point
        store.close()


def test_every_crash_point_of_the_protocol_occurs(tmp_path: Path) -> None:
    seen: set[str] = set()
    for single in (False, True):
        root = tmp_path / str(single)
        root.mkdir()
        seen |= set(visited(root, "atomic_dirsync", single))
    parts = (MODEL, OPTIMIZER, RNG, TRAIN)
    named = {name.format(part=part) for name in CRASH_POINTS for part in parts}
    assert named - seen == set()
    assert {name for name in seen - named if "step_00000040.safetensors" not in name} == set()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("point", ["half_part:model.safetensors", "before_commit", "half_commit"])
def test_two_deaths_in_a_row_at_the_same_step(tmp_path: Path, mode: str, point: str) -> None:
    """The second writer dies where the first did: what the first left must not help or hinder."""
    store_with_history(tmp_path, mode, single=False).close()
    crash_at(tmp_path, mode, False, point)
    store = CheckpointStore(tmp_path / "checkpoints", config(mode))
    for rejected in store.newest_valid().rejected:
        store.set_aside(tmp_path / rejected.path)
    crash_at(tmp_path, mode, False, point)
    choice = store.newest_valid()
    assert choice.report is not None and choice.report.global_step == 30
    store.close()
