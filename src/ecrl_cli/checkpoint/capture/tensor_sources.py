"""Finds the live tensors of a model and its optimizer by name at every capture, without building a
state_dict.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from ecrl_cli.checkpoint.format.image import DTYPES, TensorSpec
from ecrl_cli.errors import ConfigError


@dataclass(frozen=True)
class TensorSource:
    """A tensor by name; `find` looks it up each time, because training may replace it."""

    name: str
    find: Callable[[], torch.Tensor]


def model_sources(model: torch.nn.Module) -> list[TensorSource]:
    """Parameters and persistent buffers, each once, under the names of `state_dict`."""
    kept, found, seen = set(model.state_dict()), [], set[int]()
    for prefix, module in model.named_modules():
        for component, holder in (("parameters", module._parameters), ("buffers", module._buffers)):
            for key, tensor in holder.items():
                name = f"{prefix}.{key}" if prefix else key
                if tensor is not None and name in kept and id(tensor) not in seen:
                    seen.add(id(tensor))
                    found.append(
                        TensorSource(f"{component}.{name}", partial(holder.__getitem__, key))
                    )
    return found


def parameter_names(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> dict[torch.Tensor, str]:
    """The model's name of every parameter in the optimizer; `parameterN` if the model has none for
    it.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {
        parameter: names.get(parameter, f"parameter{index}")
        for index, parameter in enumerate(parameters)
    }


def optimizer_sources(
    optimizer: torch.optim.Optimizer, names: dict[torch.Tensor, str]
) -> list[TensorSource]:
    """The tensors of the optimizer's state: `optimizer.<parameter>.<key>`."""
    return [
        TensorSource(f"optimizer.{name}.{key}", partial(_state_of, optimizer, parameter, key))
        for parameter, name in names.items()
        if parameter in optimizer.state
        for key, value in sorted(optimizer.state[parameter].items())
        if isinstance(value, torch.Tensor)
    ]


def _state_of(optimizer: torch.optim.Optimizer, parameter: torch.Tensor, key: str) -> torch.Tensor:
    tensor: torch.Tensor = optimizer.state[parameter][key]
    return tensor


def spec_of(name: str, tensor: torch.Tensor) -> TensorSpec:
    if str(tensor.dtype) not in DTYPES:
        raise ConfigError(
            "checkpoint",
            f"{name} has dtype {tensor.dtype}, which a checkpoint cannot hold",
            "use one of " + ", ".join(DTYPES),
        )
    return TensorSpec(name, str(tensor.dtype), tuple(tensor.shape))


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes as a uint8 vector in host memory; a view where possible."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def dtype_of(spec: TensorSpec) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, spec.dtype.removeprefix("torch."))
    return dtype


def signature(optimizer: torch.optim.Optimizer) -> tuple[int, int]:
    """Number of parameters with state and of state entries: changes when the optimizer's state
    gains or loses an entry.
    """
    return len(optimizer.state), sum(map(len, optimizer.state.values()))
