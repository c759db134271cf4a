"""A task's own update: called in the place of the optimizer's step, with the gradients of the whole
batch, by every kind of step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ecrl_cli.config.schema import OptimizerConfig, RunConfig
from ecrl_cli.config.tasks import TASKS, TaskKind
from ecrl_cli.data.loading import SampleBatch
from ecrl_cli.errors import ConfigError
from ecrl_cli.models.optimization import autocast, build_scaler, build_scheduler
from ecrl_cli.training.control_client import HeartbeatWriter
from ecrl_cli.training.losses import regression
from ecrl_cli.training.probe import check_update
from ecrl_cli.training.replicas import ReplicaGradient, ReplicaTrainStep, alone
from ecrl_cli.training.train_step import DataParallelTrainStep, TaskUpdate

CPU = torch.device("cpu")
Make = Callable[..., Any]


def data_parallel(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    own_update: TaskUpdate,
    precision: str = "fp32",
) -> DataParallelTrainStep:
    scheduler, scaler = (
        build_scheduler(OptimizerConfig(lr=0.1), optimizer, 10),
        build_scaler(precision, CPU),
    )
    parts = (
        model,
        optimizer,
        scheduler,
        scaler,
        CPU,
        autocast(precision, CPU),
        HeartbeatWriter(None, 0),
    )
    return DataParallelTrainStep(*parts, loss=regression, own_update=own_update)


def replicas(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    own_update: TaskUpdate,
    precision: str = "fp32",
) -> ReplicaTrainStep:
    scheduler, scaler = (
        build_scheduler(OptimizerConfig(lr=0.1), optimizer, 10),
        build_scaler(precision, CPU),
    )
    first = (
        model,
        optimizer,
        scheduler,
        scaler,
        CPU,
        autocast(precision, CPU),
        HeartbeatWriter(None, 0),
    )
    return ReplicaTrainStep(
        *first, 7, 2, range(2), alone, ReplicaGradient(model), regression, own_update
    )


def batch() -> SampleBatch:
    generator = torch.Generator().manual_seed(2)
    return SampleBatch(
        torch.randn(4, 3, generator=generator),
        torch.randn(4, 2, generator=generator),
        np.arange(4),
        "",
    )


def linear() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize("make", [data_parallel, replicas])
def test_a_tasks_own_update_takes_the_place_of_the_optimizers_step(make: Make) -> None:
    model, optimizer = linear()
    given: list[torch.Tensor] = []

    def halved(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        given.extend(parameter.grad.clone() for parameter in model.parameters())
        for parameter in model.parameters():
            parameter.grad.mul_(0.5)
        optimizer.step()

    before = [parameter.detach().clone() for parameter in model.parameters()]
    regression(model, batch().x, batch().y).backward()
    mean = [parameter.grad.clone() for parameter in model.parameters()]
    make(model, optimizer, TaskUpdate(halved, model, optimizer)).run(batch(), 1)
    for was, parameter, gradient, seen in zip(before, model.parameters(), mean, given, strict=True):
        assert torch.allclose(seen, gradient)
        assert torch.allclose(parameter, was - 0.1 * 0.5 * gradient)


@pytest.mark.parametrize("make", [data_parallel, replicas])
def test_with_fp16_it_sees_unscaled_gradients_and_is_left_out_where_one_overflowed(
    make: Make,
) -> None:
    model, optimizer = linear()
    largest: list[float] = []

    def seen(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        largest.append(max(float(parameter.grad.abs().max()) for parameter in model.parameters()))
        optimizer.step()

    step = make(model, optimizer, TaskUpdate(seen, model, optimizer), "fp16")
    with torch.no_grad():
        model.weight.mul_(0.01)
        model.bias.mul_(0.01)
    step.run(SampleBatch(batch().x * 0.01, batch().y * 0.01, batch().ids, ""), 1)
    assert len(largest) == 1 and 0 < largest[0] < 1  # the scale is 65536
    weights, scale = model.weight.detach().clone(), step.scaler.get_scale()
    step.run(SampleBatch(batch().x * 1000, batch().y, batch().ids, ""), 2)
    assert (
        len(largest) == 1 and torch.equal(model.weight, weights) and step.scaler.get_scale() < scale
    )


@pytest.mark.parametrize(
    ("update", "said"),
    [
        (
            lambda model, optimizer: torch.rand(1),
            (
                "task: the update of own draws random numbers; draw them in its loss: a recovery"
                " would draw others"
            ),
        ),
        (lambda model: None, "task: own cannot update model mlp (TypeError"),
    ],
    ids=["random", "another signature"],
)
def test_an_update_that_no_recovery_could_repeat_is_refused(
    monkeypatch: pytest.MonkeyPatch, update: Any, said: str
) -> None:
    own = TaskKind(
        name="own",
        description="ours",
        loss="ecrl_cli.training.losses:regression",
        update="nowhere:update",
    )
    monkeypatch.setattr(TASKS, "of", lambda name: own)
    monkeypatch.setattr(TaskKind, "load_update", lambda self: update)
    model = nn.Linear(3, 2)
    regression(model, batch().x, batch().y).backward()
    config = RunConfig()
    with pytest.raises(ConfigError) as caught:
        check_update(config, model)
    assert said.replace("mlp", config.model.name) in str(caught.value)
