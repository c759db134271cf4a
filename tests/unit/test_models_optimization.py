"""Optimizer, schedule and precision: what a step needs, and a state that brings them back
exactly.
"""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import nn

from ecrl_cli.config.schema import OPTIMIZERS, PRECISIONS, ModelConfig, OptimizerConfig
from ecrl_cli.models import build
from ecrl_cli.models.optimization import autocast, build_optimizer, build_scaler, build_scheduler

CPU = torch.device("cpu")
STEPS = 8


class Trainer:
    """A model and what updates it, stepped as the loop does."""

    def __init__(self, optimizer: str, precision: str, lr: float = 0.01) -> None:
        torch.manual_seed(0)
        config = OptimizerConfig(name=optimizer, lr=lr)
        self.model = build(ModelConfig(width=4, depth=2), 3, (1, 8, 8))
        self.optimizer = build_optimizer(config, self.model.parameters())
        self.scheduler = build_scheduler(config, self.optimizer, STEPS)
        self.scaler = build_scaler(precision, CPU)
        self.autocast = autocast(precision, CPU)

    def step(self, index: int, factor: float = 1.0) -> float:
        x = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(index))
        self.optimizer.zero_grad(set_to_none=True)
        with self.autocast:
            logits = self.model(x)
        loss = nn.functional.cross_entropy(logits.float(), torch.arange(6) % 3) * factor
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        return float(loss.item())

    def parts(self) -> list[Any]:
        return [self.model, self.optimizer, self.scheduler, self.scaler]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_learns_and_resumes_exactly(optimizer: str, precision: str) -> None:
    whole = Trainer(optimizer, precision)
    losses = [whole.step(index) for index in range(STEPS)]
    first, second = Trainer(optimizer, precision), Trainer(optimizer, precision)
    for index in range(3):
        first.step(index)
    for source, target in zip(first.parts(), second.parts(), strict=True):
        target.load_state_dict(source.state_dict())
    assert [second.step(index) for index in range(3, STEPS)] == losses[3:]
    assert all(
        torch.equal(a, b)
        for a, b in zip(
            whole.model.state_dict().values(), second.model.state_dict().values(), strict=True
        )
    )


def test_the_rate_follows_a_cosine_from_lr_to_min_lr() -> None:
    trainer = Trainer("sgd", "fp32", lr=0.1)
    rates = []
    for index in range(STEPS):
        rates.append(trainer.optimizer.param_groups[0]["lr"])
        trainer.step(index)
    floor = OptimizerConfig().min_lr
    expected = [
        floor + (0.1 - floor) * (1 + math.cos(math.pi * step / STEPS)) / 2 for step in range(STEPS)
    ]
    assert rates == pytest.approx(expected, rel=1e-9)
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(floor)


def test_the_optimizers_take_their_settings() -> None:
    parameters = [nn.Parameter(torch.zeros(1))]
    sgd = build_optimizer(
        OptimizerConfig(name="sgd", lr=0.2, momentum=0.7, weight_decay=0.03), parameters
    )
    adamw = build_optimizer(OptimizerConfig(name="adamw", lr=0.2, weight_decay=0.03), parameters)
    assert isinstance(sgd, torch.optim.SGD)
    assert isinstance(adamw, torch.optim.AdamW)
    assert [sgd.defaults[key] for key in ("lr", "momentum", "weight_decay")] == [0.2, 0.7, 0.03]
    assert [adamw.defaults[key] for key in ("lr", "weight_decay")] == [0.2, 0.03]


def test_a_first_step_that_overflows_fp16_is_left_out_and_the_schedule_goes_on() -> None:
    trainer = Trainer("sgd", "fp16")
    before = [p.clone() for p in trainer.model.parameters()]
    trainer.step(0, factor=1e35)
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))
    assert trainer.scaler.get_scale() == 32768.0
    assert trainer.scheduler.last_epoch == 1


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_is_no_tensor_is_json(precision: str) -> None:
    trainer = Trainer("sgd", precision)
    trainer.step(0)
    states = [trainer.scheduler.state_dict(), trainer.scaler.state_dict()]
    assert json.loads(json.dumps(states)) == states
    assert bool(states[1]) is (precision == "fp16")


@pytest.mark.parametrize(
    ("precision", "expected"),
    [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)],
)
def test_autocast_computes_in_the_precision_again_and_again(
    precision: str, expected: torch.dtype
) -> None:
    context = autocast(precision, CPU)
    layer = nn.Linear(2, 2)
    for _ in range(2):
        with context:
            assert layer(torch.ones(1, 2)).dtype is expected
        assert layer(torch.ones(1, 2)).dtype is torch.float32
