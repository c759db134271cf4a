"""DistributedDataParallel whose gradient buckets are the same in every attempt.

Stock DDP first builds its buckets in parameter order, then rebuilds them after its first iteration in the order in which gradients arrived.
A restarted process does its first iteration in the middle of the run: with three or more ranks it would sum gradients in another order than an
uninterrupted run. So each process does one iteration on zeros before its first step: every real step then uses the rebuilt buckets.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ecrl_cli.config.schema import RunConfig
from ecrl_cli.errors import ConfigError
from ecrl_cli.training.optimization import autocast

_SAMPLES = 2  # the batch size does not change the order in which gradients arrive; BatchNorm needs two
_NAMED = 3


@dataclass(frozen=True)
class WarmUp:
    """Settings of the warm-up iteration: the `shape` of one sample, device and precision."""

    shape: tuple[int, ...]
    device: torch.device
    precision: AbstractContextManager[Any]
    find_unused_parameters: bool

    @classmethod
    def of(cls, config: RunConfig, shape: tuple[int, ...], device: torch.device) -> WarmUp:
        return cls(tuple(shape), device, autocast(config.precision, device), config.ddp.find_unused_parameters)


def wrap(model: torch.nn.Module, warm_up: WarmUp, **options: Any) -> DistributedDataParallel:
    """Wrap `model` in DDP (`options` are DDP's own) with its final buckets. Collective.

    Call it before the RNGs are seeded or restored: the warm-up iteration draws from them. Parameters, gradients and buffers stay as they were.
    With `ddp.find_unused_parameters` DDP never rebuilds its buckets, so no warm-up is done.
    """
    unused = warm_up.find_unused_parameters
    ddp = DistributedDataParallel(model, find_unused_parameters=unused, **options)
    if not unused:
        _iterate(ddp, warm_up)
    return ddp


def _iterate(ddp: DistributedDataParallel, warm_up: WarmUp) -> None:
    """One forward and backward pass. ConfigError if a parameter gets no gradient: DDP would fail at its next iteration."""
    model = ddp.module
    before = [buffer.clone() for buffer in model.buffers()]
    with warm_up.precision:
        output = ddp(torch.zeros(_SAMPLES, *warm_up.shape, device=warm_up.device))
    output.float().sum().backward()
    missing = [name for name, parameter in model.named_parameters() if parameter.requires_grad and parameter.grad is None]
    if missing:
        names = ", ".join(missing[:_NAMED]) + (f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else "")
        fact = f"is false, and {len(missing)} parameter(s) take no part in the loss ({names})"
        raise ConfigError("ddp.find_unused_parameters", fact, "set ddp.find_unused_parameters=true, or take them out of the model")
    model.zero_grad(set_to_none=True)
    with torch.no_grad():
        for buffer, value in zip(model.buffers(), before, strict=True):
            buffer.copy_(value)
