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
    """A cosine from `lr` to `min_lr` over `target_steps`, to be stepped after every step."""
    # fp16's scaler leaves out an optimizer step whose gradients overflowed, often the first one: no mistake in the order of calls.
    warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step\\(\\)` before", category=UserWarning)
    return CosineAnnealingLR(optimizer, T_max=target_steps, eta_min=config.min_lr)


def build_scaler(precision: str, device: torch.device) -> torch.amp.GradScaler:
    """The loss scaler of fp16; for other precisions one that passes everything through and has no state."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """The context of the forward pass; may be entered again and again."""
    return torch.autocast(device.type, dtype=AUTOCAST_TYPES[precision]) if precision in AUTOCAST_TYPES else nullcontext()
