"""A failure strikes at its moment inside a step: after its share, once, in its rank; and before and
after that step nothing stands there.
"""

# ruff: noqa: PTH102, PTH108
from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ecrl_cli.failures import storage_faults
from ecrl_cli.failures.fault_kind import InjectionContext
from ecrl_cli.failures.fault_log import fired_indices, read_fired
from ecrl_cli.failures.injector import Injector
from ecrl_cli.failures.rank_faults import Kill, OutOfMemory, PlannedError, SlowRank, Stop
from ecrl_cli.records.events import PlannedFailure
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import AttemptSpec
from tests.unit.test_checkpoint_train_state import Run

ORDER = AttemptSpec(
    attempt=1, world_size=2, resume_step=20, resume_from=None, max_step_seen=25, pending=()
)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What a kill finds where it strikes, instead of its injected fault."""
    found: list[Any] = []
    monkeypatch.setattr(Kill, "inject", lambda kind, context: found.append(look[0]()))
    look[0] = lambda: None
    yield found


look: list[Any] = [None]


def kill(moment: str, share: float = 0.5, step: int = 2, **more: Any) -> PlannedFailure:
    return PlannedFailure(0, "kill", 0, step, moment, share=share, **more)


def armed(run: Run, root: Path, *entries: PlannedFailure, rank: int = 0) -> Injector:
    injector = Injector(RunLayout(root), 0, rank, entries)
    injector.attach(run.model, run.optimizer, run.train_state)
    return injector


def step(run: Run, injector: Injector) -> None:
    injector.before_step(run.global_step + 1)
    run.train(1)
    injector.at_boundary(run.global_step, lambda: None)


def hooks_of(run: Run) -> int:
    modules = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in run.model.modules())
    backward = sum(len(p._post_accumulate_grad_hooks or ()) for p in run.model.parameters())
    return (
        modules
        + backward
        + len(run.optimizer._optimizer_step_pre_hooks)
        + len(run.optimizer._optimizer_step_post_hooks)
    )


@pytest.mark.parametrize("moment", ["forward", "backward", "optimizer"])
def test_its_hooks_are_there_for_its_step_alone_and_change_nothing(
    tmp_path: Path, seen: list[Any], moment: str
) -> None:
    plain = Run()
    plain.train(2)
    run = Run()
    run.train(1)
    injector, before = armed(run, tmp_path, kill(moment, 1.0)), hooks_of(run)
    look[0] = lambda: hooks_of(run) - before
    injector.before_step(1)
    assert hooks_of(run) == before
    step(run, injector)
    assert seen == [0] and hooks_of(run) == before
    assert all(
        torch.equal(a, b)
        for a, b in zip(run.model.parameters(), plain.model.parameters(), strict=True)
    )
    step(run, injector)
    assert seen == [0] and [(f.index, f.at_step) for f in read_fired(RunLayout(tmp_path))] == [
        (0, 2)
    ]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_forward_is_struck_after_its_share_of_the_modules(
    tmp_path: Path, seen: list[Any], share: float
) -> None:
    run, called = Run(), []
    run.train(1)
    for name, module in run.model.named_modules():
        module.register_forward_hook(lambda module, given, output, name=name: called.append(name))
    look[0] = lambda: called[-1]
    step(run, armed(run, tmp_path, kill("forward", share)))
    # of first, norm, drop, last, tied, in this order; then the model itself
    assert seen == [{0.0: "first", 0.5: "drop", 1.0: ""}[share]]


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_backward_is_struck_after_its_share_of_the_gradients(
    tmp_path: Path, seen: list[Any], share: float
) -> None:
    run = Run()
    run.train(1)
    parameters = list(run.model.parameters())
    look[0] = lambda: sum(parameter.grad is not None for parameter in parameters)
    step(run, armed(run, tmp_path, kill("backward", share)))
    assert seen == [max(1, -int(-share * len(parameters) // 1))]


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_the_update_is_struck_after_its_share_of_the_parameters(
    tmp_path: Path, seen: list[Any], share: float
) -> None:
    run = Run()
    run.train(1)
    before = [parameter.detach().clone() for parameter in run.model.parameters()]
    look[0] = lambda: sum(
        not torch.equal(a, b) for a, b in zip(before, run.model.parameters(), strict=True)
    )
    injector = armed(run, tmp_path, kill("optimizer", share))
    injector.before_step(2)
    run.train(1)
    assert seen == [-int(-share * len(before) // 1)]


def test_what_its_victim_survives_leaves_the_update_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped rank may wake up again: half an update must not become the state that it goes on
    with.
    """
    monkeypatch.setattr(Stop, "inject", lambda kind, context: None)
    plain = Run()
    plain.train(3)
    run = Run()
    run.train(1)
    injector = armed(run, tmp_path, replace(kill("optimizer", 0.2), kind="stop"))
    step(run, injector)
    step(run, injector)
    assert fired_indices(RunLayout(tmp_path)) == {0}
    assert all(
        torch.equal(a, b)
        for a, b in zip(run.model.parameters(), plain.model.parameters(), strict=True)
    )


def test_a_capture_is_struck_when_the_ranks_have_met_and_nothing_is_copied(
    tmp_path: Path, seen: list[Any]
) -> None:
    run = Run()
    run.train(7)
    injector = armed(run, tmp_path, kill("capture", step=5))
    look[0] = lambda: "gather" in vars(run.train_state)
    injector.before_save(4)
    run.train_state.gather(run.progress())
    assert seen == []
    injector.before_save(7)  # the first one due at step 5 or after it
    run.train_state.gather(run.progress())
    assert seen == [False]
    injector.before_save(8)
    assert "gather" not in vars(run.train_state)


def test_what_found_no_occasion_inside_the_step_strikes_behind_it(
    tmp_path: Path, seen: list[Any]
) -> None:
    run = Run()
    injector = armed(run, tmp_path, kill("optimizer"))
    injector.before_step(2)  # and the scaler leaves the update out
    injector.at_boundary(2, lambda: None)
    injector.before_step(3)
    run.train(1)
    assert len(seen) == 1 and hooks_of(run) == hooks_of(Run())


def test_another_rank_arms_nothing(tmp_path: Path, seen: list[Any]) -> None:
    run = Run()
    run.train(1)
    step(run, armed(run, tmp_path, kill("forward"), kill("backward"), rank=1))
    assert seen == [] and fired_indices(RunLayout(tmp_path)) == frozenset()


@pytest.mark.parametrize(("after", "strikes"), [(0, True), (25, True), (26, False)])
@pytest.mark.parametrize("moment", ["start", "rendezvous", "load"])
def test_a_start_is_struck_once_its_step_has_been_seen(
    tmp_path: Path, seen: list[Any], moment: str, after: int, strikes: bool
) -> None:
    injector = Injector(RunLayout(tmp_path), 1, 0, (kill(moment, step=after),))
    for other in ("start", "rendezvous", "load"):
        if other != moment:
            injector.at_start(other, ORDER)
    assert seen == []
    injector.at_start(moment, ORDER)
    assert len(seen) == strikes


def test_nan_takes_the_place_of_one_output(tmp_path: Path) -> None:
    run = Run()
    run.train(1)
    injector = armed(run, tmp_path, PlannedFailure(0, "nan", 0, 2, "forward", share=1.0))
    injector.before_step(2)
    given = torch.randn(2, 1, 6, 6)
    assert bool(run.model(given).isnan().all()) and not bool(run.model(given).isnan().any())


def test_a_slow_rank_is_slow_for_its_steps_and_claims_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    naps: list[float] = []
    monkeypatch.setattr(time, "sleep", naps.append)
    run = Run()
    injector = armed(run, tmp_path, PlannedFailure(0, "slow_rank", 0, 2, "forward", seconds=0.25))
    for _ in range(SlowRank.lasts + 3):
        step(run, injector)
    assert naps == [0.25] * SlowRank.lasts
    replayed = armed(Run(), tmp_path, PlannedFailure(0, "slow_rank", 0, 2, "forward", seconds=0.25))
    replayed.before_step(2)
    assert len(naps) == SlowRank.lasts


def test_an_exception_comes_out_of_forward(tmp_path: Path) -> None:
    run = Run()
    run.train(1)
    injector = armed(run, tmp_path, replace(kill("forward"), kind="raise"))
    injector.before_step(2)
    with pytest.raises(PlannedError):
        run.train(1)


def test_memory_really_runs_out_and_is_there_again(tmp_path: Path) -> None:
    context = InjectionContext(RunLayout(tmp_path), kill("forward"))
    with pytest.raises(RuntimeError, match="memory"):
        OutOfMemory().inject(context)
    assert torch.zeros(2**26, dtype=torch.uint8).sum() == 0


def test_a_sealed_folder_is_read_only_to_this_process_and_no_other_is(tmp_path: Path) -> None:
    inside, outside = tmp_path / "run", tmp_path / "elsewhere"
    inside.mkdir(), outside.mkdir()
    (inside / "old").write_text("kept")
    fd = os.open(inside / "journal", os.O_WRONLY | os.O_CREAT)
    undo = storage_faults.seal(inside)
    try:
        refused = [
            lambda: os.write(fd, b"x"),
            lambda: os.open(inside / "new", os.O_WRONLY | os.O_CREAT),
            lambda: os.unlink(inside / "old"),
        ]
        for call in [
            *refused,
            lambda: os.mkdir(inside / "folder"),
            lambda: os.truncate(inside / "old", 0),
        ]:
            with pytest.raises(OSError) as caught:
                call()
            assert caught.value.errno == errno.EROFS
        os.close(os.open(inside / "old", os.O_RDONLY))
        other = os.open(outside / "new", os.O_WRONLY | os.O_CREAT)
        assert os.write(other, b"x") == 1
        os.close(other)
    finally:
        undo()
        os.close(fd)
    (inside / "new").write_text("writable again")
    assert (inside / "old").read_text() == "kept"
