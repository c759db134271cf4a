"""DistributedDataParallel whose gradient buckets are the same in every attempt.

Stock DDP puts gradients into buckets by the order of the parameters, and anew, by the order in which gradients arrived, after its first iteration.
A restarted process does its first iteration in the middle of the run: with three or more ranks it would add up gradients in another order than the
run that it continues. So each process does one iteration over nothing before its first step: every real step then uses the rebuilt buckets.
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

_SAMPLES = 2  # the order in which gradients arrive does not depend on how many; BatchNorm needs two
_NAMED = 3


@dataclass(frozen=True)
class WarmUp:
    """What the iteration over nothing needs: the `shape` of one sample, where it is computed and in which precision."""

    shape: tuple[int, ...]
    device: torch.device
    precision: AbstractContextManager[Any]
    find_unused_parameters: bool

    @classmethod
    def of(cls, config: RunConfig, shape: tuple[int, ...], device: torch.device) -> WarmUp:
        return cls(tuple(shape), device, autocast(config.precision, device), config.ddp.find_unused_parameters)


def wrap(model: torch.nn.Module, warm_up: WarmUp, **options: Any) -> DistributedDataParallel:
    """`model` in DDP (`options` are DDP's own), its buckets settled. Collective.

    Call it before the generators are seeded or restored: the iteration draws from them. Parameters, gradients and buffers are left as they were.
    With `ddp.find_unused_parameters` DDP never rebuilds its buckets and nothing is done.
    """
    unused = warm_up.find_unused_parameters
    ddp = DistributedDataParallel(model, find_unused_parameters=unused, **options)
    if not unused:
        _iterate(ddp, warm_up)
    return ddp


def _iterate(ddp: DistributedDataParallel, warm_up: WarmUp) -> None:
    """Forward and backward once. ConfigError where a parameter gets no gradient: DDP would fail at its next iteration."""
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
