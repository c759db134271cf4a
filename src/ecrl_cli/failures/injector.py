"""Injects the planned failures of one rank; called by the train loop. Hooks are installed for the
armed step only. Torch-free.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from ecrl_cli.config.fault_spec import STARTING
from ecrl_cli.failures.fault_kind import InjectionContext, fault_kind
from ecrl_cli.failures.fault_log import claim
from ecrl_cli.linux.clock import monotonic, wall
from ecrl_cli.records.events import InjectedFault, PlannedFailure
from ecrl_cli.records.layout import RunLayout
from ecrl_cli.records.messages import AttemptSpec

_INSIDE = ("forward", "backward", "optimizer")

Inject = Callable[..., Any]


class Injector:
    """The failures of one rank that are still pending in this attempt."""

    def __init__(
        self, layout: RunLayout, attempt: int, rank: int, pending: tuple[PlannedFailure, ...]
    ) -> None:
        self._layout, self._attempt, self._rank = layout, attempt, rank
        self._boundary = [entry for entry in pending if entry.moment == "boundary"]
        own = [entry for entry in pending if entry.rank == rank]
        self._inside = [entry for entry in own if entry.moment in _INSIDE]
        self._capture = [entry for entry in own if entry.moment == "capture"]
        self._starting = [entry for entry in own if entry.moment in STARTING]
        self.meets = any(entry.others for entry in pending)
        self._peers: dict[int, int] = {}
        self._claimed: set[int] = set()
        self._armed: list[tuple[PlannedFailure, ArmedFault]] = []
        self._model: Any = None
        self._optimizer: Any = None
        self._train_state: Any = None

    def meet(self, pids: Sequence[int]) -> None:
        """Stores the pids of all ranks, in order; needed where one entry hits several ranks
        (`meets`).
        """
        self._peers = dict(enumerate(pids))

    def at_start(self, moment: str, order: AttemptSpec) -> None:
        """Injects before torch is imported (start), before the rendezvous, or before the state is
        loaded (load).
        """
        for entry in self._starting:
            if entry.moment == moment and order.max_step_seen >= entry.global_step:
                self._inject(entry, order.resume_step)

    def attach(self, model: Any, optimizer: Any, train_state: Any) -> None:
        """Sets the objects that hooks are attached to: the unwrapped model, its optimizer, the
        captured state.
        """
        self._model, self._optimizer, self._train_state = model, optimizer, train_state

    def before_step(self, global_step: int) -> None:
        """Arms what is planned inside `global_step`."""
        for entry in self._inside:
            if entry.global_step <= global_step < entry.global_step + fault_kind(entry.kind).lasts:
                self._arm(entry, global_step)

    def before_save(self, global_step: int) -> None:
        """Arms what is planned for the capture of the checkpoint of `global_step`."""
        for entry in self._capture:
            if entry.global_step <= global_step and entry.index not in self._claimed:
                self._arm(entry, global_step)

    def at_boundary(self, global_step: int, flush: Callable[[], None]) -> None:
        """Injects what is planned after `global_step`; every rank calls this, at the same step.

        `flush` is the strategy's, and collective: where the kind asks for it, all ranks take part
        before the entry is claimed (so that the claim directly precedes the failure). Faults armed
        inside the step whose hook was not reached are injected now.
        """
        late, self._armed = self._armed, []
        for entry, armed in late:
            if armed.waiting:
                armed.disarm()
                self._inject(entry, global_step)
        for entry in [each for each in self._boundary if each.global_step == global_step]:
            if fault_kind(entry.kind).flushes:
                flush()
            if entry.rank == self._rank:
                self._inject(entry, global_step)

    def disarm(self) -> None:
        """Removes all hooks: the rank leaves the attempt, and its model is used in the next one."""
        for _, armed in self._armed:
            armed.disarm()
        self._armed = []

    def _arm(self, entry: PlannedFailure, global_step: int) -> None:
        kind, armed = fault_kind(entry.kind), ArmedFault(partial(self._inject, entry, global_step))
        self._armed.append((entry, armed))
        if entry.moment == "capture":
            in_capture(armed, self._train_state)
        elif entry.moment == "backward":
            in_backward(armed, self._model, self._optimizer, entry.share)
        elif entry.moment == "optimizer":
            in_update(armed, self._optimizer, entry.share if kind.may_cut_update else 1.0)
        elif kind.replaces_output:
            on_output(armed, self._model)
        else:
            in_forward(armed, self._model, entry.share)

    def _inject(self, entry: PlannedFailure, at_step: int, output: Any = None) -> Any:
        """Claims the entry and injects it; does nothing if another process or attempt has claimed
        it.
        """
        fired = InjectedFault(
            entry.index,
            entry.kind,
            self._rank,
            entry.global_step,
            self._attempt,
            monotonic(),
            wall(),
            at_step,
        )
        if entry.index in self._claimed or claim(self._layout, fired):
            self._claimed.add(entry.index)
            return fault_kind(entry.kind).inject(
                InjectionContext(self._layout, entry, self._peers, output)
            )
        return None


class Handle(Protocol):
    def remove(self) -> None: ...


class ArmedFault:
    """Hooks of which the first to be called injects the fault, once. `waiting`: not yet
    injected.
    """

    def __init__(self, inject: Inject) -> None:
        self._inject, self.waiting = inject, True
        self._handles: list[Handle] = []

    def hold(self, handle: Handle) -> None:
        self._handles.append(handle)

    def fire(self, output: Any = None) -> Any:
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
    """After the forward of the module `share` of the way through the model, or of a later one
    called first; at the latest, after the model's.
    """
    leaves = [module for module in model.modules() if not any(True for _ in module.children())]
    for module in leaves[math.floor(share * len(leaves)) :]:
        armed.hold(module.register_forward_hook(lambda module, given, output: armed.fire()))
    armed.hold(model.register_forward_hook(lambda module, given, output: armed.fire()))


def on_output(armed: ArmedFault, model: Any) -> None:
    """After the model's forward; the result of the injection replaces its output."""
    armed.hold(model.register_forward_hook(lambda module, given, output: armed.fire(output)))


def in_backward(armed: ArmedFault, model: Any, optimizer: Any, share: float) -> None:
    """When `share` of the gradients have been accumulated, at least one; at the latest, before the
    update.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    left = max(1, math.ceil(share * len(parameters)))

    def count(parameter: Any) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            armed.fire()

    for parameter in parameters:
        armed.hold(parameter.register_post_accumulate_grad_hook(count))
    armed.hold(optimizer.register_step_pre_hook(lambda *given: armed.fire()))


def in_update(armed: ArmedFault, optimizer: Any, share: float) -> None:
    """After `share` of the parameters have been updated: the optimizer is given no others. Only if
    the model is not used again.
    """
    whole = [group["params"] for group in optimizer.param_groups]

    def show_a_part(*given: Any) -> None:
        left = math.ceil(share * sum(map(len, whole)))
        for group, parameters in zip(optimizer.param_groups, whole, strict=True):
            group["params"] = parameters[: max(0, left)]
            left -= len(parameters)

    armed.hold(optimizer.register_step_pre_hook(show_a_part))
    armed.hold(optimizer.register_step_post_hook(lambda *given: armed.fire()))


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
        armed.fire()
        return found

    armed.hold(Replaced(train_state, "gather", gathered))
