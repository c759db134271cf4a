"""Optimizer, learning-rate schedule and precision of a run."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler

from ecrl_cli.config.legs import constant_rate, schedule_position
from ecrl_cli.config.schema import OptimizerConfig

AUTOCAST_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def build_optimizer(
    config: OptimizerConfig, parameters: Iterable[torch.nn.Parameter]
) -> torch.optim.Optimizer:
    """SGD with momentum, or AdamW (which has its own betas and ignores `momentum`)."""
    if config.name == "sgd":
        return torch.optim.SGD(
            parameters, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay
        )
    return torch.optim.AdamW(parameters, lr=config.lr, weight_decay=config.weight_decay)


class CosineLegs(CosineAnnealingLR):
    """Cosine annealing over each leg of a run whose targets were `ends` (`config.legs`). Its state
    is that of torch's class in the present leg.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, config: OptimizerConfig, ends: tuple[int, ...]
    ) -> None:
        self._ends, self._constant = ends, constant_rate(config)
        super().__init__(optimizer, T_max=ends[0], eta_min=config.min_lr)

    def state_dict(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in super().state_dict().items()
            if name not in ("_ends", "_constant")
        }

    def begin_update(self, step: int) -> None:
        """If `step` is the end of a leg, set the schedule of the next leg. Called right before the
        optimizer's first update after it.

        Not earlier, so that the scheduler's state at `step` is the same in a run that ended there,
        in one that continues, and in one that repeats or rolls back the update.
        """
        if step not in self._ends[:-1]:
            return
        steps, done = schedule_position(self._ends, step + 1, constant=self._constant)
        self.T_max, self.last_epoch = steps, done - 1
        if not self._constant:
            for group, rate in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
                group["lr"] = rate
            self._last_lr = list(self.base_lrs)


def build_scheduler(
    config: OptimizerConfig,
    optimizer: torch.optim.Optimizer,
    target_steps: int,
    continued_at: tuple[int, ...] = (),
) -> LRScheduler:
    """Cosine annealing from `lr` to `min_lr` over `target_steps`, stepped after every step; of a
    run that was continued, over each leg.
    """
    # fp16's scaler skips an optimizer step whose gradients overflowed, often the first one: the
    # calls are in the right order.
    warnings.filterwarnings(
        "ignore", message="Detected call of `lr_scheduler.step\\(\\)` before", category=UserWarning
    )
    return CosineLegs(optimizer, config, (*continued_at, target_steps))


def begin_update(scheduler: object, step: int) -> None:
    """Tell the schedule that the first update after `step` begins, if it is one with legs."""
    if isinstance(scheduler, CosineLegs):
        scheduler.begin_update(step)


def build_scaler(precision: str, device: torch.device) -> torch.amp.GradScaler:
    """The gradient scaler for fp16; disabled and without state for other precisions."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """The context of the forward pass; reusable."""
    return (
        torch.autocast(device.type, dtype=AUTOCAST_TYPES[precision])
        if precision in AUTOCAST_TYPES
        else nullcontext()
    )
