"""examples/jobs/rl.py comes back exactly, with its world in this process or in one of its own, and
each of its planted bugs changes the end. Shown without the judge: by the last checkpoint's content.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from ecrl_cli.studies.frameworks.recipes import jobs_dir


@pytest.fixture
def rl(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The job's module, and torch's generator as it was."""
    monkeypatch.syspath_prepend(str(jobs_dir()))
    with torch.random.fork_rng():
        yield import_module("rl")
    for name in ("rl", "options"):
        sys.modules.pop(name, None)


def last_state(
    rl: ModuleType, folder: Path, stops: tuple[int, ...], bug: str = ""
) -> dict[str, Any]:
    """The last checkpoint of a job that ends before each step of `stops` and starts again."""
    folder.mkdir()
    for stop in (*stops, rl.STEPS):
        learner = rl.Learner(folder, bug, rl.World())
        rl.STEPS, whole = stop, rl.STEPS
        learner.train()
        rl.STEPS = whole
    state: dict[str, Any] = torch.load(folder / "last.pt", weights_only=True)
    return state


def differing(one: Any, other: Any, name: str = "") -> list[str]:
    if isinstance(one, dict):
        keys = one.keys() | other.keys()
        parts = [
            differing(one.get(key), other.get(key), f"{name}/{key}")
            for key in sorted(keys, key=str)
        ]
        return [line for part in parts for line in part]
    equal = torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
    return [] if equal else [name]


@pytest.mark.parametrize("stops", [(7,), (6, 11), (5, 16, 19)])
def test_it_comes_back_exactly(rl: ModuleType, tmp_path: Path, stops: tuple[int, ...]) -> None:
    undisturbed = last_state(rl, tmp_path / "undisturbed", ())
    assert differing(undisturbed, last_state(rl, tmp_path / "stopped", stops)) == []


@pytest.mark.parametrize(
    ("bug", "part"),
    [("memory", "memory"), ("target", "target"), ("critic's optimizer", "critic_optimizer")],
)
def test_each_bug_changes_the_end(rl: ModuleType, tmp_path: Path, bug: str, part: str) -> None:
    undisturbed = last_state(rl, tmp_path / "undisturbed", ())
    stopped = last_state(rl, tmp_path / "stopped", (7,), bug)
    changed = {line.split("/")[1] for line in differing(undisturbed, stopped)}
    assert part in changed


def test_there_is_a_bug_for_each_kind_of_state(rl: ModuleType) -> None:
    assert list(rl.BUGS) == ["memory", "target", "critic's optimizer"]


def test_a_world_in_a_process_of_its_own_does_the_same(rl: ModuleType, tmp_path: Path) -> None:
    weights = {"weight": np.full((1, rl.WIDTH), 0.1), "bias": np.full(1, 0.2)}
    here, there = rl.World(), rl.OwnProcess()
    assert (here.collect(weights) == there.collect(weights)).all()
    assert here.state() == there.state()
    state = here.state()
    later = here.collect(weights)
    there.restore(state)
    assert (there.collect(weights) == later).all()
    there.pipe.close()
