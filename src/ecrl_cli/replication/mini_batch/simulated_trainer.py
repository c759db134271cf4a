"""Model and optimizer of the simulated run, with a state that can be copied, restored and hashed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torchvision.models.resnet import Bottleneck

from ecrl_cli.checkpoint.capture.train_state import TrainState
from ecrl_cli.models import build
from ecrl_cli.replication.mini_batch.sizes import Size
from ecrl_cli.training.optimization import build_optimizer


@dataclass(frozen=True)
class State:
    """A deep copy of the state. `moments`: optimizer tensors by parameter."""

    parameters: tuple[torch.Tensor, ...]
    buffers: tuple[torch.Tensor, ...]
    moments: tuple[dict[str, Any], ...]


class Cursor:
    """Progress: `done` mini-batches. The learning rate is constant, so this is also the schedule's whole state."""

    def __init__(self) -> None:
        self.done = 0

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.done = int(state_dict.get("done", self.done))


class Trainee:
    """The one model that stands for all workers: synchronous workers are identical between mini-batches."""

    def __init__(self, size: Size, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = build(size.model, size.classes, size.shape)
        if size.quiet:
            _quieten(self.model)
        self.parameters = list(self.model.parameters())
        self.names = tuple(name for name, _ in self.model.named_parameters())
        self.buffers = list(self.model.buffers())
        self.optimizer = build_optimizer(size.optimizer, self.parameters)
        self.cursor = Cursor()
        self.train_state = TrainState(self.model, self.optimizer, self.cursor, None, Cursor(), rank=0, world_size=1)

    @property
    def nbytes(self) -> int:
        """Size of the parameters in bytes."""
        return sum(parameter.nbytes for parameter in self.parameters)

    def state(self) -> State:
        with torch.no_grad():
            parameters = tuple(parameter.detach().clone() for parameter in self.parameters)
            return State(parameters, self.buffers_now(), tuple(map(_copied, map(self._moments, self.parameters))))

    def restore(self, state: State) -> None:
        """Restore `state` bit for bit; moments that did not exist then are removed."""
        with torch.no_grad():
            for target, saved in zip(self.parameters, state.parameters, strict=True):
                target.copy_(saved)
        self.put_buffers(state.buffers)
        self.optimizer.state.clear()
        for parameter, moments in zip(self.parameters, state.moments, strict=True):
            if moments:
                self.optimizer.state[parameter] = _copied(moments)

    def buffers_now(self) -> tuple[torch.Tensor, ...]:
        return tuple(buffer.detach().clone() for buffer in self.buffers)

    def put_buffers(self, saved: tuple[torch.Tensor, ...]) -> None:
        with torch.no_grad():
            for target, value in zip(self.buffers, saved, strict=True):
                target.copy_(value)

    def update(self, gradients: Mapping[int, torch.Tensor], *, zero_others: bool = False) -> None:
        """One optimizer step on the parameters (by index) in `gradients`.

        The others are left out of the step and stay unchanged. With `zero_others`, the published way, they take the step with zero gradients, and
        momentum and weight decay move them.
        """
        for index, parameter in enumerate(self.parameters):
            found = gradients.get(index)
            parameter.grad = torch.zeros_like(parameter) if found is None and zero_others else found
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def unmoved(self, before: State, indices: list[int]) -> bool:
        """Whether these parameters and their moments are bit for bit as in `before`."""
        return all(
            torch.equal(self.parameters[index], before.parameters[index]) and _same(self._moments(self.parameters[index]), before.moments[index])
            for index in indices
        )

    def digest(self) -> str:
        """One digest of parameters, buffers and moments."""
        return self.train_state.state_digest()

    def _moments(self, parameter: torch.Tensor) -> dict[str, Any]:
        found: dict[str, Any] = self.optimizer.state.get(parameter, {})
        return found


def _quieten(model: torch.nn.Module) -> None:
    """Zero the weights of the last BatchNorm of every residual branch."""
    for module in model.modules():
        if isinstance(module, Bottleneck):
            torch.nn.init.zeros_(module.bn3.weight)


def _copied(moments: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in moments.items()}


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    tensors = {key for moments in (one, other) for key, value in moments.items() if isinstance(value, torch.Tensor)}
    return all(key in one and key in other and torch.equal(one[key], other[key]) for key in tensors)
