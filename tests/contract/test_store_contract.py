"""Killed at every point of the protocol, under every write mode, in both layouts and strategies:
what recovery finds is whole, and nothing acknowledged is lost.

The process is killed by SIGKILL inside the real store code; the page cache survives, so this is the
contract for process crashes.
"""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ecrl_cli.checkpoint.format.names import CRASH_POINTS, MODEL, OPTIMIZER, RNG, TRAIN
from ecrl_cli.checkpoint.store.integrity import IntegrityConfig
from ecrl_cli.checkpoint.store.store import CheckpointStore, StoreConfig
from ecrl_cli.checkpoint.store.synthetic import RUN_ID, synthetic_image, synthetic_plan
from ecrl_cli.config.schema import LAYOUTS, WRITE_MODES
from ecrl_cli.config.studies import WRITING
from ecrl_cli.studies.crash_points.crash_server import memory_there
from ecrl_cli.studies.crash_points.crash_targets import Save, survivor
from ecrl_cli.studies.crash_points.store_fixture import Payload
from ecrl_cli.studies.crash_points.trial import CrashRig
from ecrl_cli.studies.frame.store_fixture import write_mode

ATTEMPT = 3


def plan(single: bool):
    return synthetic_plan(40_000, 20_000, single=single)


def config(mode: str) -> StoreConfig:
    return StoreConfig(mode=write_mode(mode), keep=2, integrity=IntegrityConfig(run_id=RUN_ID))


def commit(
    store: CheckpointStore, step: int, single: bool, attempt: int = ATTEMPT, seed: int = 1
) -> None:
    image = synthetic_image(seed, step, plan(single))
    store.update_pointers_and_retire(store.save(image, attempt), image)


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
    store.crash_point = points.append
    commit(store, 40, single)
    store.close()
    return points


def in_a_child(work: Callable[[Callable[[], None]], None]) -> tuple[bool, bool]:
    """Run `work(acknowledge)` in a forked process; gives whether it acknowledged, and whether it
    was killed.
    """
    read, write = os.pipe()
    with warnings.catch_warnings():
        # other threads of this process hold nothing that the child needs
        warnings.simplefilter("ignore", DeprecationWarning)
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
        store = CheckpointStore(root / "checkpoints", config(mode), crash_point=die)
        image = synthetic_image(1, 40, plan(single))
        saved = store.save(image, ATTEMPT)
        acknowledge()
        store.update_pointers_and_retire(saved, image)

    acknowledged, killed = in_a_child(work)
    assert killed, f"{point} did not kill"
    return acknowledged


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashRig]:
    where = "memory" if memory_there() else str(tmp_path_factory.mktemp("bench"))
    with closing(CrashRig(where, Payload(1, 16_384, 8_192))) as made:
        yield made


@pytest.mark.parametrize("strategy", WRITING)
@pytest.mark.parametrize("mode", WRITE_MODES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_killed_writer_leaves_the_new_checkpoint_or_the_previous_one(
    rig: CrashRig, mode: str, layout: str, strategy: str
) -> None:
    """At every point: exactly what is due is recovered, and the next attempt saves the same step
    and leaves nothing lying about.
    """
    points, _ = rig.visited(Save(mode, layout))
    assert len(points) == len(set(points)) >= 15
    for point in points:
        found = rig.crash(Save(mode, layout, point=point), strategy)
        assert found["hit"], point
        assert found["outcome"] == survivor(mode, point, points), point
        assert not found["again"] and not found["left"], point
        if mode != "unsafe" and layout == "group":
            assert not found["half"], f"{point}: a half checkpoint has a name that counts"


@pytest.mark.parametrize("mode", WRITE_MODES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_writer_killed_before_any_of_its_calls_leaves_a_whole_checkpoint(
    rig: CrashRig, mode: str, layout: str
) -> None:
    _, calls = rig.visited(Save(mode, layout))
    assert len(calls) >= 15
    for number, call in enumerate(calls):
        found = rig.crash(Save(mode, layout, call=number), "blocking")
        assert found["hit"], call
        assert (
            found["outcome"] in ("new", "previous") and not found["again"] and not found["left"]
        ), call
        if mode != "unsafe" and layout == "group":
            assert not found["half"], f"{call}: a half checkpoint has a name that counts"


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


@pytest.mark.parametrize("mode", WRITE_MODES)
@pytest.mark.parametrize("point", ["half_part:model.safetensors", "before_commit", "half_commit"])
def test_two_deaths_in_a_row_at_the_same_step(tmp_path: Path, mode: str, point: str) -> None:
    """The second writer dies where the first did: what the first left must not help or hinder."""
    store_with_history(tmp_path, mode, single=False).close()
    crash_at(tmp_path, mode, False, point)
    store = CheckpointStore(tmp_path / "checkpoints", config(mode))
    for rejected in store.newest_valid().rejected:
        store.quarantine(tmp_path / rejected.path)
    crash_at(tmp_path, mode, False, point)
    choice = store.newest_valid()
    assert choice.report is not None and choice.report.global_step == 30
    store.close()
