"""Hooks into one step of one rank: in place before it, removed when they have struck. A step without a planned failure has none."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

Inject = Callable[..., Any]


class Handle(Protocol):
    def remove(self) -> None: ...


class ArmedFault:
    """Hooks that strike once, whichever of them is called first. `waiting`: not yet."""

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
    """When the module that lies `share` of the way through the model has computed, or the first called behind it; at the latest, the model."""
    leaves = [module for module in model.modules() if not any(True for _ in module.children())]
    for module in leaves[math.floor(share * len(leaves)) :]:
        armed.hold(module.register_forward_hook(lambda module, given, output: armed.strike()))
    armed.hold(model.register_forward_hook(lambda module, given, output: armed.strike()))


def on_output(armed: ArmedFault, model: Any) -> None:
    """When the model has computed; what the injection returns takes the place of its output."""
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
    """When `share` of the parameters have been updated: the optimizer sees no others. Only where nothing goes on with the model."""
    whole = [group["params"] for group in optimizer.param_groups]

    def show_a_part(*given: Any) -> None:
        left = math.ceil(share * sum(map(len, whole)))
        for group, parameters in zip(optimizer.param_groups, whole, strict=True):
            group["params"] = parameters[: max(0, left)]
            left -= len(parameters)

    armed.hold(optimizer.register_step_pre_hook(show_a_part))
    armed.hold(optimizer.register_step_post_hook(lambda *given: armed.strike()))


class Replaced:
    """An attribute of one object that hides its method of the same name until `remove`."""

    def __init__(self, owner: Any, name: str, call: Callable[..., Any]) -> None:
        self._owner, self._name = owner, name
        setattr(owner, name, call)

    def remove(self) -> None:
        delattr(self._owner, self._name)


def in_capture(armed: ArmedFault, pack: Any) -> None:
    """When the ranks have given each other what the checkpoint needs of them, and nothing is copied yet."""
    gather = pack.gather

    def gathered(*given: Any) -> Any:
        found = gather(*given)
        armed.strike()
        return found

    armed.hold(Replaced(pack, "gather", gathered))
