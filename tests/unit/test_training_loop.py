"""The loop's edges: where it starts behind the last step, or behind one that a failure is planned for."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest

from ecrl_cli.config.schema import RunConfig
from ecrl_cli.training.step import Loop


def loop_at(step: int, loss: float = 0.25) -> Any:
    """A loop to step 10 whose parts only note what they are asked."""
    parts = {name: MagicMock() for name in ("learner", "loader", "sampler", "pack", "strategy", "injector", "clock", "journal", "report")}
    return Loop(RunConfig(target_steps=10), attempt=1, rank=0, world_size=1, global_step=step, line_chain="", loss=loss, **parts)


def test_a_loop_that_starts_at_the_target_ends_with_the_loss_of_its_checkpoint() -> None:
    assert loop_at(10).run() == 0.25


def test_the_loss_goes_into_the_checkpoint() -> None:
    assert loop_at(10).progress().loss == 0.25
    assert loop_at(10, float("nan")).progress().loss is None


@pytest.mark.parametrize(("step", "asked"), [(10, [10]), (0, [])])
def test_what_should_have_struck_where_it_resumes_strikes_there(step: int, asked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    loop = loop_at(step)
    loop.config = RunConfig(target_steps=step)
    loop.run()
    assert [call.args[0] for call in loop.injector.at_boundary.call_args_list] == asked
