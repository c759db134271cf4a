"""Hooks into one step of one rank: installed before it, removed once they have fired. Steps without a planned failure have none."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

Inject = Callable[..., Any]


class Handle(Protocol):
    def remove(self) -> None: ...


class ArmedFault:
    """Hooks of which the first to be called injects the fault, once. `waiting`: not yet injected."""

    def __init__(self, inject: Inject) -> None:
        self._inject, self.waiting = inject, True
        self._handles: list[Handle] = []

    def hold(self, handle: Handle) -> None:
        self._handles.append(handle)

    def strike(self, output: Any = None) -> Any:
        if not self.waiting:
            return None
        self.disarm()
        return self._inject(output)

    def disarm(self) -> None:
        self.waiting = False
        for handle in self._handles:
            handle.remove()
        self._handles = []


def in_forward(armed: ArmedFault, model: Any, share: float) -> None:
    """After the forward of the module `share` of the way through the model, or of a later one called first; at the latest, after the model's."""
    leaves = [module for module in model.modules() if not any(True for _ in module.children())]
    for module in leaves[math.floor(share * len(leaves)) :]:
        armed.hold(module.register_forward_hook(lambda module, given, output: armed.strike()))
    armed.hold(model.register_forward_hook(lambda module, given, output: armed.strike()))


def on_output(armed: ArmedFault, model: Any) -> None:
    """After the model's forward; the result of the injection replaces its output."""
    armed.hold(model.register_forward_hook(lambda module, given, output: armed.strike(output)))


def in_backward(armed: ArmedFault, model: Any, optimizer: Any, share: float) -> None:
    """When `share` of the gradients have been accumulated, at least one; at the latest, before the update."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    left = max(1, math.ceil(share * len(parameters)))

    def count(parameter: Any) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            armed.strike()

    for parameter in parameters:
        armed.hold(parameter.register_post_accumulate_grad_hook(count))
    armed.hold(optimizer.register_step_pre_hook(lambda *given: armed.strike()))


def in_update(armed: ArmedFault, optimizer: Any, share: float) -> None:
    """After `share` of the parameters have been updated: the optimizer is given no others. Only if the model is not used again."""
    whole = [group["params"] for group in optimizer.param_groups]

    def show_a_part(*given: Any) -> None:
        left = math.ceil(share * sum(map(len, whole)))
        for group, parameters in zip(optimizer.param_groups, whole, strict=True):
            group["params"] = parameters[: max(0, left)]
            left -= len(parameters)

    armed.hold(optimizer.register_step_pre_hook(show_a_part))
    armed.hold(optimizer.register_step_post_hook(lambda *given: armed.strike()))


class Replaced:
    """Shadows a method of one object with an instance attribute until `remove`."""

    def __init__(self, owner: Any, name: str, call: Callable[..., Any]) -> None:
        self._owner, self._name = owner, name
        setattr(owner, name, call)

    def remove(self) -> None:
        delattr(self._owner, self._name)


def in_capture(armed: ArmedFault, train_state: Any) -> None:
    """After the ranks have gathered the state for the checkpoint, before anything is copied."""
    gather = train_state.gather

    def gathered(*given: Any) -> Any:
        found = gather(*given)
        armed.strike()
        return found

    armed.hold(Replaced(train_state, "gather", gathered))
