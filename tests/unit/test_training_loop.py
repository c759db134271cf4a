"""The loop's edges: where it starts after the last step, or after one that a failure is planned
for.
"""

from __future__ import annotations

import random
from typing import Any
from unittest.mock import MagicMock, call

import numpy as np
import pytest
import torch

from ecrl_cli.checkpoint.capture.rng import seed_rank
from ecrl_cli.config.schema import CheckpointConfig, RunConfig
from ecrl_cli.errors import LossNotFinite
from ecrl_cli.training.train_loop import TrainLoop
from ecrl_cli.training.train_step import StepResult


def loop_at(step: int, loss: float = 0.25) -> Any:
    """A loop to step 10 whose parts only note what they are asked."""
    names = (
        "train_step loader sampler train_state strategy injector heartbeat clock journal report"
    ).split()
    parts = {name: MagicMock() for name in names}
    parts["heartbeat"].stop_after.return_value = None
    return TrainLoop(
        RunConfig(target_steps=10),
        attempt=1,
        rank=0,
        world_size=1,
        global_step=step,
        line_chain="",
        loss=loss,
        **parts,
    )


def test_a_loop_that_starts_at_the_target_ends_with_the_loss_of_its_checkpoint() -> None:
    assert loop_at(10).run() == 0.25


def test_the_loss_goes_into_the_checkpoint() -> None:
    assert loop_at(10).progress().loss == 0.25
    assert loop_at(10, float("nan")).progress().loss is None


def test_an_attempt_that_ends_in_a_change_of_size_saves_and_confirms_its_last_step() -> None:
    """Off the boundary, and without a final checkpoint: what goes on must have something to go on
    from.
    """
    loop = loop_at(0)
    loop.config = RunConfig(target_steps=10, checkpoint=CheckpointConfig(every=3, final=False))
    loop.until = 5
    loop.train_step.run.return_value = StepResult(0.5, 0.5)
    loop.loader.batch.return_value = MagicMock(ids=np.arange(4), inputs_hash="")
    loop.sampler.epoch = loop.sampler.cursor_step = 0
    loop.train_state.state_digest.return_value = None
    loop.journal.append.return_value = b"line"
    assert loop.run() == 0.5
    assert [call.args[0].global_step for call in loop.strategy.save.call_args_list] == [3, 5]
    loop.strategy.flush.assert_called_once_with()
    loop.strategy.confirm.assert_called_once_with(5)


def test_what_is_owed_is_saved_before_the_first_step_and_not_prepared_for_twice() -> None:
    """The memory that the attempt began with has that step already; what is remembered is what this
    attempt did.
    """
    loop = loop_at(9)
    loop.config = RunConfig(
        target_steps=10, checkpoint=CheckpointConfig(strategy="in_memory", every=3)
    )
    loop.checkpoint_owed = True
    loop.train_step.run.return_value = StepResult(0.5, 0.5)
    loop.loader.batch.return_value = MagicMock(ids=np.arange(4), inputs_hash="")
    loop.sampler.epoch = loop.sampler.cursor_step = 0
    loop.train_state.state_digest.return_value = None
    loop.journal.append.return_value = b"line"
    loop.run()
    assert [call.args[0].global_step for call in loop.strategy.save.call_args_list] == [9, 10]
    assert [call.args[0].global_step for call in loop.strategy.snapshot.call_args_list] == [10]
    loop.strategy.prepare.assert_called_once_with()


def test_a_rank_that_learns_of_the_stop_behind_its_last_step_saves_that_step() -> None:
    """The word may reach a rank only with the gradients of the step to stop after: it is asked for
    between that step and its checkpoint.
    """
    loop = loop_at(0)
    loop.config = RunConfig(target_steps=10, checkpoint=CheckpointConfig(every=100, final=False))
    loop.train_step.run.return_value = StepResult(0.5, 0.5)
    loop.loader.batch.return_value = MagicMock(ids=np.arange(4), inputs_hash="")
    loop.sampler.epoch = loop.sampler.cursor_step = 0
    loop.train_state.state_digest.return_value = None
    loop.journal.append.return_value = b"line"
    loop.heartbeat.stop_after.side_effect = lambda step: 3 if step == 3 else None
    loop.run()
    assert [call.args[0].global_step for call in loop.strategy.save.call_args_list] == [3]
    loop.strategy.confirm.assert_called_once_with(3)
    assert loop.until == 3


def test_a_flush_for_a_planned_failure_is_on_the_board_as_one() -> None:
    """While a rank only logs, what the writer does is no sign of its life."""
    loop, told = loop_at(10), MagicMock()
    told.attach_mock(loop.heartbeat.phase, "phase")
    told.attach_mock(loop.strategy.flush, "flush")
    loop.injector.at_boundary.side_effect = lambda step, flush: flush()
    loop.run()
    assert told.mock_calls == [call.phase("flushing"), call.flush()] * 2


def test_every_rank_and_every_step_it_may_begin_behind_has_streams_of_its_own() -> None:
    def drawn(rank: int, step: int) -> tuple[float, float, float]:
        seed_rank(5, rank, step)
        return random.random(), float(np.random.random()), float(torch.rand(()))

    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    streams = [drawn(rank, step) for rank in (0, 1) for step in (0, 20)]
    assert drawn(1, 20) == streams[-1]
    assert all(len(set(each)) == 4 for each in zip(*streams, strict=True))
    random.setstate(before[0])
    np.random.set_state(before[1])
    torch.set_rng_state(before[2])


@pytest.mark.parametrize(("step", "asked"), [(10, [10]), (0, [])])
def test_what_should_have_struck_where_it_resumes_strikes_there(
    step: int, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = loop_at(step)
    loop.config = RunConfig(target_steps=step)
    loop.run()
    assert [call.args[0] for call in loop.injector.at_boundary.call_args_list] == asked


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), float("-inf")])
def test_a_step_whose_loss_is_not_finite_is_neither_logged_nor_saved(loss: float) -> None:
    loop = loop_at(9)
    loop.train_step.run.return_value = StepResult(loss, loss)
    with pytest.raises(LossNotFinite, match="at step 10 on rank 0"):
        loop.run()
    loop.journal.append.assert_not_called()
    loop.strategy.save.assert_not_called()
