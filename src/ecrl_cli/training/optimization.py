"""Optimizer, learning-rate schedule and precision of a run."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler

from ecrl_cli.config.schema import OptimizerConfig

AUTOCAST_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def build_optimizer(config: OptimizerConfig, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """SGD with momentum, or AdamW (which has its own betas and ignores `momentum`)."""
    if config.name == "sgd":
        return torch.optim.SGD(parameters, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay)
    return torch.optim.AdamW(parameters, lr=config.lr, weight_decay=config.weight_decay)


def build_scheduler(config: OptimizerConfig, optimizer: torch.optim.Optimizer, target_steps: int) -> LRScheduler:
    """Cosine annealing from `lr` to `min_lr` over `target_steps`, stepped after every step."""
    # fp16's scaler skips an optimizer step whose gradients overflowed, often the first one: the calls are in the right order.
    warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step\\(\\)` before", category=UserWarning)
    return CosineAnnealingLR(optimizer, T_max=target_steps, eta_min=config.min_lr)


def build_scaler(precision: str, device: torch.device) -> torch.amp.GradScaler:
    """The gradient scaler for fp16; disabled and without state for other precisions."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """The context of the forward pass; reusable."""
    return torch.autocast(device.type, dtype=AUTOCAST_TYPES[precision]) if precision in AUTOCAST_TYPES else nullcontext()
